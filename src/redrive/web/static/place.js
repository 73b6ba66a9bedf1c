// Where the service is: at the root of its host, or under a path of another application. Our scripts lie one folder below it.

const ROOT = new URL("..", import.meta.url).pathname.replace(/\/$/, "");

/** The address of one of our paths. */
export const place = (path) => ROOT + path;
