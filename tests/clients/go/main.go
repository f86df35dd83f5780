// go-redis as tests/clients.rs drives it: goredis URL PROTOCOL WAY, where PROTOCOL is `default`, `2` or `3`, and WAY
// `alone`, `pipeline` or `multi`. A line of stdin is a command, its arguments in hexadecimal; a line of stdout an answer.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	url, protocol, way := os.Args[1], os.Args[2], os.Args[3]
	// Long enough for the deepest pipeline on a busy machine; by default what is not answered in time is sent again, and
	// counted again.
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	options.ReadTimeout, options.WriteTimeout, options.MaxRetries = 5*time.Minute, 5*time.Minute, -1
	if protocol != "default" {
		options.Protocol, _ = strconv.Atoi(protocol)
	}
	client := redis.NewClient(options)
	context := context.Background()
	var asked []*redis.Cmd
	ask := func(to func(args ...interface{}) *redis.Cmd) {
		for _, words := range commands() {
			asked = append(asked, to(words...))
		}
	}
	switch way {
	case "alone":
		// One connection, as RESET and the like concern one.
		connection := client.Conn()
		ask(func(args ...interface{}) *redis.Cmd { return connection.Do(context, args...) })
	case "pipeline", "multi":
		all := client.Pipeline()
		if way == "multi" {
			all = client.TxPipeline()
		}
		ask(func(args ...interface{}) *redis.Cmd { return all.Do(context, args...) })
		// Its error is that of the first command that has one, which is shown in its place.
		_, _ = all.Exec(context)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "version", redis.Version())
	for _, one := range asked {
		answer, err := one.Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			answer = err
		}
		fmt.Fprintln(out, shown(answer))
	}
}

func commands() [][]interface{} {
	var all [][]interface{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var words []interface{}
		for _, word := range strings.Fields(lines.Text()) {
			bytes, err := hex.DecodeString(word)
			if err != nil {
				panic(err)
			}
			words = append(words, string(bytes))
		}
		all = append(all, words)
	}
	return all
}

func shown(answer interface{}) string {
	switch answer := answer.(type) {
	case []interface{}:
		parts := make([]string, len(answer))
		for i, part := range answer {
			parts[i] = shown(part)
		}
		return "[" + strings.Join(parts, " ") + "]"
	case error:
		return "-" + answer.Error()
	case string:
		text := []byte{'"'}
		for _, one := range []byte(answer) {
			if one >= 32 && one < 127 {
				text = append(text, one)
			} else {
				text = append(text, fmt.Sprintf("\\x%02x", one)...)
			}
		}
		return string(append(text, '"'))
	default:
		return fmt.Sprint(answer)
	}
}
