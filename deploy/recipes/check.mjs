// One check with the right headers, in Node: ioredis, any web framework. Try it: node check.mjs
//
// A rationd that has any configuration knows only the policies written there. This asks about one:
//
//     [policy.api]
//     limits = ["100/1s burst 200"]

import http from "node:http";
import Redis from "ioredis";

// A check that is not answered in time passes; it is not asked again, as it may have been charged.
const limiter = new Redis({
  path: "/run/rationd/rationd.sock",
  commandTimeout: 100,
  maxRetriesPerRequest: 0,
  enableOfflineQueue: false,
  retryStrategy: () => 100,
});
limiter.on("error", () => {}); // `check` fails open, and ioredis connects again by itself.

/** Whether the request is limited, and the header fields of its response. */
export async function check(policy, key) {
  try {
    const [limited, ...fields] = await limiter.call("RATION.HEADERS", policy, key);
    const headers = {};
    for (let i = 0; i < fields.length; i += 2) headers[fields[i]] = fields[i + 1];
    return { limited: limited === 1, headers };
  } catch {
    return { limited: false, headers: {} };
  }
}

http
  .createServer(async (request, response) => {
    const { limited, headers } = await check("api", request.socket.remoteAddress);
    response.writeHead(limited ? 429 : 200, headers);
    response.end(limited ? "too many requests\n" : "hello\n");
  })
  .listen(8080, "127.0.0.1");
