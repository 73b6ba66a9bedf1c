"""How the app is called."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The shop."""

    name = "examples.django_shop.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
