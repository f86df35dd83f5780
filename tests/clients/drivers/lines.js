// What both Node clients read and write: commands with their arguments in hexadecimal, and answers as text.
"use strict";

const { readFileSync } = require("node:fs");

const byte = (code) => (code >= 32 && code < 127 ? String.fromCharCode(code) : `\\x${code.toString(16).padStart(2, "0")}`);

exports.commands = () => {
  const lines = readFileSync(0, "latin1").trimEnd().split("\n");
  return lines.map((line) => line.split(" ").map((word) => Buffer.from(word, "hex")));
};

exports.shown = function shown(answer) {
  if (Array.isArray(answer)) return `[${answer.map(shown).join(" ")}]`;
  if (answer instanceof Error) return `-${answer.message}`;
  if (typeof answer === "number") return String(answer);
  return `"${Array.from(Buffer.from(answer), byte).join("")}"`;
};
