import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: { eqeqeq: "error", "no-shadow": "error", "no-var": "error", "prefer-const": "error" },
  },
  { files: ["src/**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["*.js", "test/**/*.js"], languageOptions: { globals: globals.node } },
];
