"""`/v1/keys`: who may ask. For keys with the scope `admin`, which manage the keys of all users."""

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from redrive.access.keys import ApiKey
from redrive.access.ports import Keys
from redrive.lane import Actor
from redrive.operator.json_views import fields_json
from redrive.systems.triggers import shapes as m
from redrive.systems.triggers.access import needs
from redrive.systems.triggers.cursor import CURSOR_CHARS_MAX, Cursors
from redrive.systems.triggers.ports import StoreClock
from redrive.systems.triggers.routes.answers import invalid, not_found, owner_of, refusals, with_body

KEY_ID_CHARS_MAX = 100
EXPIRES_MAX = timedelta(days=366)
"""How far ahead a key may expire, when it is made and when it is changed."""
KeyId = Annotated[str, Path(description="The key's id", examples=["3f9a61c0d2b4"])]


def _key_json(key: ApiKey) -> dict[str, Any]:
    return fields_json(key, m.KeyOut.model_fields, key_id=key.id, user=key.owner)


def _read(key_id: str) -> str:
    """The id, or one that no key has where it cannot be one: PostgreSQL cannot be asked for every text."""
    return key_id if key_id.isascii() and key_id.isprintable() and len(key_id) <= KEY_ID_CHARS_MAX else "-"


def add_key_routes(router: APIRouter, keys: Keys, clock: StoreClock, cursors: Cursors) -> None:
    """The routes of keys."""

    def checked(expires_at: datetime | None) -> None:
        now = clock.now()
        if expires_at is not None and not now < expires_at <= now + EXPIRES_MAX:
            message = f"it must lie in the future, at most {EXPIRES_MAX.days} days ahead; null lets a key live for ever"
            raise invalid(message, "body", "expires_at")

    def by(request: Request) -> Actor:
        return Actor(name=owner_of(request))

    @router.post("/keys", status_code=201, tags=["keys"], response_model=m.KeyMade, responses=with_body())
    @needs("admin")
    async def create_key(request: Request, given: m.KeyIn) -> JSONResponse:
        """Make a key for a user. Its text is shown now and not again: only its hash is kept."""
        checked(given.expires_at)
        expires = None if given.expires_at is None else given.expires_at - clock.now()
        made = await keys.create(given.user, [scope.value for scope in given.scopes], expires=expires, by=by(request))
        return JSONResponse(_key_json(made.key) | {"key": made.secret}, status_code=201)

    @router.get("/keys", tags=["keys"], response_model=m.KeyPage, responses=refusals(400))
    @needs("admin")
    async def list_keys(
        request: Request,
        user: Annotated[m.Owner | None, Query(description="Only keys of this user")] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 50,
        cursor: Annotated[str | None, Query(max_length=CURSOR_CHARS_MAX)] = None,
    ) -> JSONResponse:
        """Keys that are not revoked, of all users or of one."""
        bound_to = ("keys", owner_of(request), user)
        after = None
        if cursor is not None and (after := await cursors.read(cursor, *bound_to)) is None:
            raise invalid("this cursor was not given out for this request: begin again without it", "query", "cursor")
        found = await keys.page(owner=user, after=after, limit=limit + 1)
        shown, has_more = found[:limit], len(found) > limit
        pagination = {
            "limit": limit,
            "cursor": await cursors.write(shown[-1].id, *bound_to) if has_more else None,
            "has_more": has_more,
            "total_count": None,
        }
        return JSONResponse({"keys": [_key_json(key) for key in shown], "pagination": pagination})

    @router.get("/keys/{key_id}", tags=["keys"], response_model=m.KeyOut, responses=refusals(404))
    @needs("admin")
    async def get_key(key_id: KeyId) -> JSONResponse:
        """What is known of a key; not the key itself."""
        key = await keys.get(_read(key_id))
        if key is None:
            raise not_found()
        return JSONResponse(_key_json(key))

    @router.patch("/keys/{key_id}", tags=["keys"], response_model=m.KeyOut, responses=with_body(404))
    @needs("admin")
    async def change_key(request: Request, key_id: KeyId, given: m.KeyChange) -> JSONResponse:
        """Change what a key is good for, or until when."""
        checked(given.expires_at)
        forever = "expires_at" in given.model_fields_set and given.expires_at is None
        scopes = None if given.scopes is None else [scope.value for scope in given.scopes]
        key = await keys.change(
            _read(key_id), scopes=scopes, expires_at=given.expires_at, forever=forever, by=by(request)
        )
        if key is None:
            raise not_found()
        return JSONResponse(_key_json(key))

    @router.delete("/keys/{key_id}", status_code=204, tags=["keys"], response_class=Response, responses=refusals(404))
    @needs("admin")
    async def revoke_key(request: Request, key_id: KeyId) -> Response:
        """Revoke a key: the very next request with it is refused, in every process."""
        known = await keys.get(_read(key_id))
        if known is None:
            raise not_found()
        await keys.revoke(known.id, by=by(request))
        return Response(status_code=204)
