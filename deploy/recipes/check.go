// One check with the right headers, in Go: the standard library, any router. Try it: go run check.go
//
// A rationd that has any configuration knows only the policies written there. This asks about one:
//
//     [policy.api]
//     limits = ["100/1s burst 200"]
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	socket  = "/run/rationd/rationd.sock"
	timeout = 100 * time.Millisecond
)

// check tells whether the request is limited, and the header fields of its response.
// Who gets no answer in time lets the request pass.
func check(policy, key string) (limited bool, header http.Header) {
	fields, err := ask("RATION.HEADERS", policy, key)
	if err != nil || len(fields) == 0 {
		return false, nil
	}
	header = http.Header{}
	for i := 1; i+1 < len(fields); i += 2 {
		header.Set(fields[i], fields[i+1])
	}
	return fields[0] == "1", header
}

// ask sends a command, on a connection of its own, and reads an array of integers and strings.
func ask(words ...string) ([]string, error) {
	conn, err := net.DialTimeout("unix", socket, timeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(timeout))
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(conn, command.String()); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	head, err := line(reader)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(head, "*") {
		return nil, fmt.Errorf("rationd: %s", head)
	}
	count, err := strconv.Atoi(head[1:])
	if err != nil {
		return nil, err
	}
	items := make([]string, 0, count)
	for len(items) < count {
		item, err := line(reader)
		if err == nil && strings.HasPrefix(item, "$") {
			// Its length; no line break is ever within.
			item, err = line(reader)
		} else {
			item = strings.TrimPrefix(item, ":")
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func line(reader *bufio.Reader) (string, error) {
	text, err := reader.ReadString('\n')
	return strings.TrimRight(text, "\r\n"), err
}

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		limited, header := check("api", host)
		for name, values := range header {
			w.Header()[name] = values
		}
		if limited {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		fmt.Fprintln(w, "hello")
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
