package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/coder/websocket"
)

// webSocket asks for a WebSocket where an upgrade was not to be had.
func (t *target) webSocket(ctx context.Context) (net.Conn, Info, error) {
	conn, info, err := t.connect(ctx)
	if err != nil {
		return nil, info, err
	}
	info.Transport = WebSocket
	var c *websocket.Conn
	var resp *http.Response
	err = within(ctx, conn, ResponseTimeout, func() error {
		c, resp, err = websocket.Dial(ctx, t.url.String(), &websocket.DialOptions{
			HTTPClient: &http.Client{
				Transport:     over{conn},
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			},
			HTTPHeader:   t.header(),
			Subprotocols: []string{t.Proto},
		})
		return err
	})
	switch {
	case err != nil && resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		err = readAnswer(resp)
	case err != nil:
		err = &answer{err: err}
	case !strings.EqualFold(c.Subprotocol(), t.Proto):
		c.CloseNow()
		err = &answer{status: http.StatusSwitchingProtocols, server: Printable(resp.Header.Get("Server"), 40)}
	}
	if err != nil {
		conn.Close()
		return nil, info, err
	}
	return newSocket(c, conn), info, nil
}

// over is an http.RoundTripper over a connection that is there already.
type over struct{ conn net.Conn }

func (o over) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, early, err := exchange(o.conn, req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &pipe{Conn: o.conn, under: o.conn, early: early}
	}
	return resp, err
}

// socket is a WebSocket as a net.Conn. Close does not wait for the other side to agree, as a handshake of
// closing would for five seconds; its end is the connection's, and reads as io.EOF.
type socket struct {
	net.Conn
	c     *websocket.Conn
	under net.Conn
}

func newSocket(c *websocket.Conn, under net.Conn) net.Conn {
	return &socket{Conn: websocket.NetConn(context.Background(), c, websocket.MessageBinary), c: c, under: under}
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil && isEnd(err) {
		err = io.EOF
	}
	return n, err
}

func (s *socket) Close() error {
	err := s.c.CloseNow()
	if errors.Is(err, net.ErrClosed) || err != nil && isEnd(err) {
		return nil
	}
	return err
}

// NetConn returns the connection below.
func (s *socket) NetConn() net.Conn { return s.under }

func (s *socket) RemoteAddr() net.Addr { return s.under.RemoteAddr() }
func (s *socket) LocalAddr() net.Addr  { return s.under.LocalAddr() }
