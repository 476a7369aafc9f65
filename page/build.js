// Bundles the modules in src/ into the one script of the HTML view. With `--check`, writes nothing and fails if the
// committed bundle differs from a new one.

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const bundle = fileURLToPath(new URL("../export/views/page/app.js", import.meta.url));

const result = await build({
  absWorkingDir: here, // file names in the bundle's comments are relative to it
  entryPoints: ["src/main.js"],
  bundle: true,
  write: false,
  format: "iife",
  target: "es2023",
  charset: "utf8",
  legalComments: "inline",
  banner: { js: '// Built from page/src by `npm run build`. Change the files there, not this one.\n"use strict";' },
});
const built = result.outputFiles[0].text;

if (/<\/script|<!--/i.test(built)) throw new Error("the bundle contains text that ends or changes a <script> element");
if (!process.argv.includes("--check")) {
  writeFileSync(bundle, built);
} else if (readFileSync(bundle, "utf8") !== built) {
  console.error("export/views/page/app.js is out of date: run `npm run build` in page/ and commit the result.");
  process.exit(1);
}
