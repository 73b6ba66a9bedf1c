"""The settings of triggers: how deliveries are retried, where they may go and how fast, and how much a key may ask."""

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from redrive import minutes, seconds
from redrive.gates import Breaker
from redrive.settings import Section, listed, rate, span

RETRIES_MAX = 3
"""The CHECK in the store allows no more."""
DELAY_SECONDS_MAX = 86_400.0

Network = IPv4Network | IPv6Network


def _networks(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    networks = []
    for text in listed(given):
        try:
            networks.append(ip_network(text))
        except ValueError:
            raise ValueError(f"{text!r} is not a network: write it as 10.0.0.0/8 or fd00::/8") from None
    return tuple(networks)


def _delays(given: Any) -> Any:
    parts = tuple(str(part) for part in (listed(given) if isinstance(given, str) else given))
    try:
        delays = [float(part) for part in parts]
    except ValueError:
        raise ValueError("it must be seconds separated by commas, such as 60,300,900") from None
    if not delays or not all(0 <= delay <= DELAY_SECONDS_MAX for delay in delays):
        raise ValueError(f"it must be one or more delays of 0 to {DELAY_SECONDS_MAX:g} seconds")
    return parts


class TriggerSettings(Section):
    """How events are delivered."""

    retry_delays: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_delays)] = Field(
        default=("60", "300", "900"),
        description="Seconds to wait after the first, second and third failed delivery of an event",
    )
    max_retry_attempts: int = Field(
        default=RETRIES_MAX, ge=0, le=RETRIES_MAX, description="How often a delivery is tried again, 0 to 3"
    )
    retry_jitter_percent: float = Field(
        default=0,
        ge=0,
        le=100,
        description="Each delay is up to this many percent shorter or longer; 10 spreads a herd",
    )
    delivery_retry_all: bool = Field(
        default=False, description="Try every failed delivery again, also after a 4xx that would be final"
    )
    delivery_allow_networks: Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_networks)] = Field(
        default=(), description="Networks inside which endpoints may lie all the same, such as 127.0.0.0/8,10.0.0.0/8"
    )
    rate_limit_per_minute: int = Field(
        default=1000, ge=1, le=10_000_000, description="How many requests a key may make in a minute, in all processes"
    )

    deliveries_per_minute: int = Field(
        default=100_000,
        ge=1,
        le=1_000_000_000,
        description="How many deliveries the events of a user may make in a minute: one for each endpoint that an event goes to",
    )
    endpoint_concurrency: int = Field(
        default=10, ge=0, le=1_000_000, description="How many deliveries go to one endpoint at once; 0: no limit"
    )
    endpoint_rate: Annotated[str | None, AfterValidator(rate)] = Field(
        default=None,
        description="How many deliveries to one endpoint may begin: 20/s, 100/m or 1000/h; not set: no limit",
    )
    endpoint_breaker_failures: int = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description="After this many tries an endpoint that mostly fails is held: one delivery at a time asks whether it is back; 0: never",
    )
    endpoint_breaker_percent: float = Field(
        default=50, gt=0, le=100, description="What share of them must have failed, in percent"
    )
    endpoint_breaker_within: Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1)))] = Field(
        default=minutes(1), description="Of which span these tries are"
    )
    endpoint_probe: Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1)))] = Field(
        default=seconds(30), description="How often one delivery asks whether an endpoint that is held is back"
    )

    @property
    def endpoint_limits(self) -> dict[str, Any]:
        """The limits of each endpoint's gate."""
        breaker = Breaker(
            failures=self.endpoint_breaker_failures, share=self.endpoint_breaker_percent / 100,
            within=self.endpoint_breaker_within, probe=self.endpoint_probe,
        ) if self.endpoint_breaker_failures else None  # fmt: skip
        return {"concurrency": self.endpoint_concurrency or None, "rate": self.endpoint_rate, "breaker": breaker}

    @property
    def delays(self) -> list[timedelta]:
        """The delays as spans."""
        return [timedelta(seconds=float(seconds)) for seconds in self.retry_delays]

    @property
    def longest_delay(self) -> timedelta:
        """The longest of them, which no `Retry-After` makes longer unless the endpoint's policy says so."""
        return max(self.delays)
