// ioredis as tests/clients.rs drives it: node ioredis.js SOCKET PROTOCOL WAY, where PROTOCOL is `default`, 2 or 3, and
// WAY `alone`, `pipeline` or `multi`. A line of stdin is a command, its arguments in hexadecimal; a line of stdout an
// answer.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const { commands, shown } = require("./lines.js");

const [path, protocol, way] = process.argv.slice(2);

async function ask(redis) {
  // The name of a command must be text.
  const all = commands().map(([name, ...rest]) => [name.toString(), ...rest]);
  if (way === "alone") {
    const answers = [];
    for (const command of all) answers.push(await redis.callBuffer(...command).catch((error) => error));
    return answers;
  }
  const pipe = way === "multi" ? redis.multi() : redis.pipeline();
  for (const command of all) pipe.callBuffer(...command);
  return (await pipe.exec()).map(([error, answer]) => error ?? answer);
}

async function main() {
  const redis = new Redis({ path, ...(protocol === "default" ? {} : { protocol: Number(protocol) }) });
  redis.on("error", (error) => { throw error; });
  const answers = await ask(redis);
  assert.equal(await redis.quit(), "OK");
  console.log("version", require("ioredis/package.json").version);
  console.log(answers.map(shown).join("\n"));
}

main();
