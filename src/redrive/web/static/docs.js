// The API page: Swagger UI over our own description. Nothing is asked of anybody else.
window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // by default descriptions are sent elsewhere to be checked
  requestInterceptor: (request) => {
    // Who has logged in may try routes out; what changes something needs the session's token.
    const token = document.querySelector('meta[name="csrf-token"]')?.content;
    if (token && new URL(request.url, location.href).origin === location.origin) request.headers["X-CSRF-Token"] = token;
    return request;
  },
});
