"""The settings of the shop. What redrive needs is marked; the database is a file, or PostgreSQL where SHOP_POSTGRES says so."""

import os
from typing import Any

import django
from sqlalchemy import make_url

SECRET_KEY = "only for this example"  # noqa: S105
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "examples.django_shop.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *([] if django.VERSION >= (6,) else ["django_tasks"]),
    "examples.django_shop.shop",
    "redrive.django",  # redrive
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TASKS = {"default": {"BACKEND": "redrive.django.backend.RedriveBackend", "OPTIONS": {"retries": 3}}}  # redrive
REDRIVE_DASHBOARD_URL = "http://127.0.0.1:8086"  # redrive

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_FILE", "shop.db"),
        "OPTIONS": {"timeout": 10, "transaction_mode": "IMMEDIATE"},  # as SQLite wants it where several processes write
    }
}
if "SHOP_POSTGRES" in os.environ:
    _url = make_url(os.environ["SHOP_POSTGRES"])
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _url.database,
            "USER": _url.username,
            "PASSWORD": _url.password,
            "HOST": _url.host or _url.query.get("host"),
            "PORT": _url.port,
        }
    }
