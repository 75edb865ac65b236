package stream

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"weft"
)

// ErrNoUpgrade is returned by Accept for a request that asks for no upgrade to the protocol, by either way. It
// has been answered.
var ErrNoUpgrade = errors.New("the request asks for no upgrade to this protocol")

// Accept makes a stream of a request that asks for proto, by upgrade or by WebSocket. When it returns an error
// the request has been answered. The connection has no deadlines; it does not end with the request's context.
//
// A request that a browser sends on behalf of a page of another site is refused by its Origin: the streams
// prove their peers inside, but nobody's browser is to be made a client.
func Accept(w http.ResponseWriter, r *http.Request, proto string) (net.Conn, error) {
	how, err := asked(w, r, proto)
	if err != nil {
		return nil, err
	}
	return accept(w, r, proto, how)
}

// asked says by which way the request asks for proto; if by none, it is answered.
func asked(w http.ResponseWriter, r *http.Request, proto string) (Transport, error) {
	if origin := r.Header.Get("Origin"); origin != "" && !sameHost(origin, r.Host) {
		WriteError(w, http.StatusForbidden, &weft.Error{Code: weft.CodeDenied, Message: "pages of other sites may not open this stream"})
		return "", fmt.Errorf("the request has a foreign Origin %q", Printable(origin, 100))
	}
	if r.Method == http.MethodGet && r.ProtoMajor == 1 && hasToken(r.Header, "Connection", "upgrade") {
		switch {
		case hasToken(r.Header, "Upgrade", proto):
			return Upgrade, nil
		case hasToken(r.Header, "Upgrade", "websocket") && hasToken(r.Header, "Sec-Websocket-Protocol", proto):
			return WebSocket, nil
		}
	}
	h := w.Header()
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", proto)
	h.Set(headerProto, proto) // a proxy drops the other two
	h.Set("Cache-Control", "no-store")
	http.Error(w, "Here is a weft server, and this path is for programs: "+proto, http.StatusUpgradeRequired)
	return "", ErrNoUpgrade
}

func accept(w http.ResponseWriter, r *http.Request, proto string, how Transport) (net.Conn, error) {
	hijack := &hijacker{ResponseWriter: w}
	if how == WebSocket {
		c, err := websocket.Accept(hijack, r, &websocket.AcceptOptions{Subprotocols: []string{proto}})
		if err != nil {
			return nil, err
		}
		return newSocket(c, hijack.conn), nil
	}
	conn, rw, err := hijack.Hijack()
	if err != nil {
		WriteError(w, http.StatusInternalServerError, &weft.Error{Code: weft.CodeInternal, Message: "this server cannot take the connection over"})
		return nil, fmt.Errorf("taking the connection over: %w", err)
	}
	early, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(ResponseTimeout))
		_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", proto)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("answering the upgrade: %w", err)
	}
	return &pipe{Conn: conn, under: conn, early: append([]byte(nil), early...)}, nil
}

// hijacker remembers the connection that was taken over, and clears the deadlines that http.Server set.
type hijacker struct {
	http.ResponseWriter
	conn net.Conn
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		c.Close()
		return nil, nil, err
	}
	tune(c, 0, 0)
	h.conn = c
	return c, rw, nil
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

func hasToken(h http.Header, name, token string) bool {
	for _, v := range h[http.CanonicalHeaderKey(name)] {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// WriteError refuses a request with a document that [Dial] returns as it is.
func WriteError(w http.ResponseWriter, status int, e *weft.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set(headerError, "1")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e) // a client that has gone is not told
}
