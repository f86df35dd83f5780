<?php
// phpredis as tests/clients.rs drives it: php phpredis.php SOCKET WAY, where WAY is `alone`, `pipeline` or `multi`.
// A line of stdin is a command, its arguments in hexadecimal; a line of stdout an answer.

function shown($answer): string
{
    if (is_array($answer)) {
        return '[' . implode(' ', array_map('shown', $answer)) . ']';
    }
    // Among several, an error is only `false`, and a status `true`.
    if (is_bool($answer)) {
        return $answer ? 'true' : '-';
    }
    if (is_int($answer)) {
        return (string) $answer;
    }
    return '"' . preg_replace_callback('/[^ -~]/', fn ($it) => sprintf('\x%02x', ord($it[0])), $answer) . '"';
}

[, $socket, $way] = $argv;
$commands = array_map(fn ($line) => array_map('hex2bin', explode(' ', $line)), file('php://stdin', FILE_IGNORE_NEW_LINES));
$redis = new Redis();
$redis->connect($socket);
$redis->setOption(Redis::OPT_REPLY_LITERAL, true);
echo 'version ', phpversion('redis'), "\n";
$several = ['pipeline' => Redis::PIPELINE, 'multi' => Redis::MULTI][$way] ?? null;
if ($several === null) {
    foreach ($commands as $command) {
        $answer = $redis->rawCommand(...$command);
        echo shown($answer), $answer === false ? $redis->getLastError() : '', "\n";
    }
} else {
    $redis->multi($several);
    foreach ($commands as $command) {
        $redis->rawCommand(...$command);
    }
    foreach ($redis->exec() as $answer) {
        echo shown($answer), "\n";
    }
}
$redis->rawCommand('QUIT') === 'OK' or exit('no OK to QUIT');
