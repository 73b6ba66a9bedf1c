"""The service over HTTP: health, metrics and the start page.

`app` puts it together, `guard` says who may come in, `envelope` wraps every request, `errors` gives every refusal the same
form, `health` and `start` hold the routes.
"""
