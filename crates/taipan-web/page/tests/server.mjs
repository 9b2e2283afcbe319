// A static server for working on the page and testing it:
//   node tests/server.mjs [--fake] [--port 8000] [--package DIR]
// --fake serves tests/fake.js in the place of the package; --package another build of it.
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";
import { fileURLToPath } from "node:url";

const page = fileURLToPath(new URL("..", import.meta.url));
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
  ".json": "application/json",
};

/** The file of an address; null outside the served directories. */
function fileOf(path, { fake, pkg }) {
  if (fake && path === "/taipan/index.js") return join(page, "tests/reexport.js");
  const [root, rest] = path.startsWith("/taipan/") ? [pkg, path.slice(7)] : [page, path];
  const file = normalize(join(root, rest.endsWith("/") ? `${rest}index.html` : rest));
  return file.startsWith(normalize(root).replace(/[/\\]$/, "") + sep) ? file : null;
}

export function serve({ fake = false, port = 0, pkg = join(page, "../js") } = {}) {
  const server = createServer(async (request, response) => {
    const file = fileOf(decodeURIComponent(new URL(request.url, "http://x").pathname), {
      fake,
      pkg,
    });
    const found =
      file &&
      (await stat(file).then(
        (s) => s.isFile(),
        () => false,
      ));
    if (!found) return response.writeHead(404).end("not found");
    response.writeHead(200, {
      "content-type": TYPES[extname(file)] ?? "application/octet-stream",
      "cache-control": "no-store",
    });
    createReadStream(file).pipe(response);
  });
  return new Promise((ready) =>
    server.listen(port, "127.0.0.1", () =>
      ready({
        url: `http://localhost:${server.address().port}/`,
        close: () => server.close(),
      }),
    ),
  );
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const option = (name) => process.argv[process.argv.indexOf(name) + 1];
  const { url } = await serve({
    fake: process.argv.includes("--fake"),
    port: process.argv.includes("--port") ? Number(option("--port")) : 8000,
    ...(process.argv.includes("--package") ? { pkg: option("--package") } : {}),
  });
  console.log(url);
}
