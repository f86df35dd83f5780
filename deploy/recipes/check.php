<?php
// One check with the right headers, in PHP: the extension redis. Try it: php -S 127.0.0.1:8080 check.php
//
// A rationd that has any configuration knows only the policies written there. This asks about one:
//
//     [policy.api]
//     limits = ["100/1s burst 200"]

const SOCKET = '/run/rationd/rationd.sock';

/** Whether the request is limited; sets the header fields of its response. Without an answer in time it passes. */
function limited(string $policy, string $key): bool
{
    try {
        $limiter = new Redis();
        $limiter->connect(SOCKET, 0, 0.1, null, 0, 0.1);
        $limiter->setOption(Redis::OPT_MAX_RETRIES, 0);
        $answer = $limiter->rawCommand('RATION.HEADERS', $policy, $key);
    } catch (RedisException) {
        return false;
    }
    if (!is_array($answer)) {
        return false;
    }
    $limited = array_shift($answer);
    foreach (array_chunk($answer, 2) as [$name, $value]) {
        header("$name: $value");
    }
    return $limited === 1;
}

if (limited('api', $_SERVER['REMOTE_ADDR'])) {
    http_response_code(429);
    exit("too many requests\n");
}
echo "hello\n";
