package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"weft"
)

// DefaultSocket is where the daemon's local API listens unless told otherwise.
const DefaultSocket = "/run/weft/weft.sock"

// apiHost is the only Host that the local API answers to. No web page can name it: it is no domain, and the
// socket is no port.
const apiHost = "weft.localapi"

// ErrNotRunning is returned when no daemon listens on the socket.
var ErrNotRunning = errors.New("weft is not running here: start it with `weft node`, or name its socket with --socket")

// A Client speaks to a daemon's local API. Its zero value is not usable; it is safe for concurrent use.
type Client struct {
	http   *http.Client
	socket string
}

// NewClient makes a client for the daemon behind a socket.
func NewClient(socket string) *Client {
	var d net.Dialer
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// UpRequest asks the daemon to be up, joining first if there is a token.
type UpRequest struct {
	Token string `json:"token,omitempty"`
	Name  string `json:"name,omitempty"`
}

// Status returns the daemon's status document.
func (c *Client) Status(ctx context.Context) (weft.Status, error) {
	var s weft.Status
	return s, c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Up brings the daemon up, and returns when it has a map or the server has refused.
func (c *Client) Up(ctx context.Context, r UpRequest) error {
	return c.do(ctx, http.MethodPost, "/v1/up", r, nil)
}

// Down takes the network away and keeps the identity.
func (c *Client) Down(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/down", nil, nil)
}

// Rotate gives the node another key.
func (c *Client) Rotate(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/rotate", nil, nil)
}

// Logout leaves the network. A server that could not be told is an error, after the fact: the machine has left.
func (c *Client) Logout(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/logout", nil, nil)
}

// Ping sends one ping to a peer and waits for its reply for at most the timeout.
func (c *Client) Ping(ctx context.Context, peer string, timeout time.Duration) (weft.PingReply, error) {
	var r weft.PingReply
	return r, c.do(ctx, http.MethodPost, "/v1/ping", pingRequest{Peer: peer, TimeoutMS: timeout.Milliseconds()}, &r)
}

// Explain asks how a peer is reached, and why so.
func (c *Client) Explain(ctx context.Context, peer string) (weft.Explanation, error) {
	var e weft.Explanation
	return e, c.do(ctx, http.MethodPost, "/v1/explain", peerRequest{Peer: peer}, &e)
}

// Access asks whether one machine may begin something towards another: what is a protocol and a port, or "" for all that there is.
func (c *Client) Access(ctx context.Context, from, to, what string) (weft.Access, error) {
	var a weft.Access
	return a, c.do(ctx, http.MethodPost, "/v1/access", accessRequest{From: from, To: to, What: what}, &a)
}

// Paths asks for the ways to a peer, how each does, and what became of them.
func (c *Client) Paths(ctx context.Context, peer string) (weft.Paths, error) {
	var p weft.Paths
	return p, c.do(ctx, http.MethodPost, "/v1/paths", peerRequest{Peer: peer}, &p)
}

// Metrics asks for all counters and gauges.
func (c *Client) Metrics(ctx context.Context) (weft.Metrics, error) {
	var m weft.Metrics
	return m, c.do(ctx, http.MethodGet, "/v1/metrics", nil, &m)
}

// Netcheck asks what the NATs on the way out do. It takes some seconds.
func (c *Client) Netcheck(ctx context.Context) (weft.Netcheck, error) {
	var n weft.Netcheck
	return n, c.do(ctx, http.MethodGet, "/v1/netcheck", nil, &n)
}

// Settings returns the settings.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	var s Settings
	return s, c.do(ctx, http.MethodGet, "/v1/settings", nil, &s)
}

// SetSettings replaces the settings.
func (c *Client) SetSettings(ctx context.Context, s Settings) error {
	return c.do(ctx, http.MethodPut, "/v1/settings", s, nil)
}

// Portal makes the node one end of a portal, or none, and returns when addresses are handed over.
func (c *Client) Portal(ctx context.Context, q PortalRequest) (weft.PortalStatus, error) {
	var s weft.PortalStatus
	return s, c.do(ctx, http.MethodPost, "/v1/portal", q, &s)
}

// PortalStatus asks how the portal does.
func (c *Client) PortalStatus(ctx context.Context) (weft.PortalStatus, error) {
	var s weft.PortalStatus
	return s, c.do(ctx, http.MethodGet, "/v1/portal", nil, &s)
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+apiHost+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return ErrNotRunning
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no permission to use %s: run as root or as the daemon's user", c.socket)
	case err != nil:
		return fmt.Errorf("asking the daemon at %s: %w", c.socket, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the daemon's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		var e weft.Error
		if json.Unmarshal(b, &e) == nil && e.Message != "" {
			return &e
		}
		return fmt.Errorf("the daemon at %s answered %s", c.socket, resp.Status)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte: // what is no document
		*out = b
		return nil
	}
	return json.Unmarshal(b, out)
}
