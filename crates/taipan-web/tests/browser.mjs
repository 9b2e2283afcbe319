// A Chromium with its software WebGPU, and a server for the package.
import { createServer } from "node:http";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Where scripts/web-test installed packages of npm. */
export const require = createRequire(join(process.env.TAIPAN_NPM ?? ".", "package.json"));
export const dist = fileURLToPath(new URL("../dist/", import.meta.url));

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm",
  ".json": "application/json" };

/** Serve directories by the beginning of the address, and an empty page at `/`. */
export async function serve(directories) {
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, "http://x").pathname;
    if (path === "/") {
      return response.writeHead(200, { "content-type": "text/html" }).end("<!doctype html><link rel=icon href=data:,>");
    }
    const found = Object.entries(directories).find(([prefix]) => path.startsWith(prefix));
    const bytes = found && await readFile(join(found[1], path.slice(found[0].length))).catch(() => null);
    if (!bytes) return response.writeHead(404).end();
    return response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" }).end(bytes);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return { url: `http://localhost:${server.address().port}/`, close: () => server.close() };
}

const ARGUMENTS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
  "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

/** A browser with a profile of its own; pages report what their console says. */
export async function launch() {
  const { chromium } = require("playwright-core");
  const profile = await mkdtemp(join(tmpdir(), "taipan-chromium-"));
  const executablePath = ["/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
  const context = await chromium.launchPersistentContext(profile, {
    executablePath, headless: true, args: ARGUMENTS,
  });
  const messages = [];
  context.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) messages.push(message.text());
  });
  context.on("weberror", (error) => messages.push(String(error.error())));
  return {
    context,
    /** Errors and warnings of all consoles so far. */
    messages,
    close: async () => {
      await context.close();
      await rm(profile, { recursive: true, force: true });
    },
  };
}

/** A page with the package as `window.taipan`. */
export async function open(browser, server) {
  const page = await browser.context.newPage();
  await page.goto(server.url);
  await page.evaluate(async () => { window.taipan = await import("/taipan/index.js"); });
  return page;
}
