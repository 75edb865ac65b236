package stream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"unicode"

	"weft"
	"weft/wire"
)

// target is where a Dial goes, taken apart once.
type target struct {
	Options
	url  *url.URL // of the request
	addr string   // host:port
}

func newTarget(o Options) (*target, error) {
	if err := wire.CheckServerURL(o.URL); err != nil {
		return nil, &weft.Error{Code: weft.CodeBadRequest, Message: "the server's address cannot be used: " + err.Error()}
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, &weft.Error{Code: weft.CodeBadRequest, Message: "the server's address cannot be used: " + err.Error()}
	}
	u.Path = strings.TrimRight(u.Path, "/") + o.Path
	u.RawPath = ""
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	if o.DialContext == nil {
		o.DialContext = (&net.Dialer{KeepAliveConfig: KeepAlive}).DialContext
	}
	return &target{Options: o, url: u, addr: hostPort(u)}, nil
}

// Dial opens a stream: by upgrade or, where an intermediary does not let that through, by WebSocket. The
// context bounds the dialling, not the stream. Read and write deadlines work; one that passes ends the stream.
//
// An error is a [weft.Error] where something answered: a refusal of a server of ours as it was sent, and
// weft.CodeUnavailable or weft.CodeNotFound for what anybody else says. Whoever sent a refusal has proved
// nothing: act on its code no further than by asking again later.
func Dial(ctx context.Context, o Options) (net.Conn, Info, error) {
	t, err := newTarget(o)
	if err != nil {
		return nil, Info{}, err
	}
	conn, info, err := t.upgrade(ctx)
	if err == nil {
		return conn, info, nil
	}
	var first *answer
	if !errors.As(err, &first) || !first.worthWebSocket() || ctx.Err() != nil {
		return nil, Info{}, t.explain(err, nil)
	}
	conn, info, err2 := t.webSocket(ctx)
	if err2 == nil {
		return conn, info, nil
	}
	if ctx.Err() != nil {
		err2 = ctx.Err()
	}
	return nil, Info{}, t.explain(err2, first)
}

// connect makes the connection on which the request is written: TCP, a proxy's tunnel, TLS.
func (t *target) connect(ctx context.Context) (conn net.Conn, info Info, err error) {
	proxy, err := t.Proxy(&http.Request{URL: t.url, Host: t.url.Host})
	if err != nil {
		return nil, info, &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("HTTP_PROXY or HTTPS_PROXY in the environment cannot be used: %v", err)}
	}
	addr := t.addr
	if proxy != nil {
		if err := checkProxy(proxy); err != nil {
			return nil, info, err
		}
		addr, info.Proxy = hostPort(proxy), proxy.Host
	}
	dialCtx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	raw, err := t.DialContext(dialCtx, "tcp", addr)
	if err != nil {
		return nil, info, err
	}
	defer func() {
		if err != nil {
			raw.Close()
		}
	}()
	tune(raw, t.ReadBuffer, t.WriteBuffer)
	conn = raw
	if proxy != nil {
		if conn, err = tunnel(ctx, conn, proxy, t.addr); err != nil {
			return nil, info, err
		}
	}
	info.TLS = TLSNone
	if t.url.Scheme == "https" {
		conn, info.TLS, err = startTLS(ctx, conn, t.url.Hostname(), t.Fingerprint, t.Roots)
	}
	return conn, info, err
}

func (t *target) header() http.Header {
	h := t.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set("User-Agent", "weft/"+weft.Version)
	return h
}

func (t *target) upgrade(ctx context.Context) (net.Conn, Info, error) {
	conn, info, err := t.connect(ctx)
	if err != nil {
		return nil, info, err
	}
	info.Transport = Upgrade
	var early []byte
	err = within(ctx, conn, ResponseTimeout, func() error {
		early, err = t.request(conn)
		return err
	})
	if err != nil {
		conn.Close()
		return nil, info, err
	}
	return &pipe{Conn: conn, under: conn, early: early}, info, nil
}

// request asks for the upgrade and returns what came behind the head of the answer.
func (t *target) request(conn net.Conn) (early []byte, err error) {
	req := &http.Request{Method: http.MethodGet, URL: t.url, Host: t.url.Host, Header: t.header()}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", t.Proto)
	resp, early, err := exchange(conn, req)
	if err != nil {
		return nil, &answer{err: err}
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(resp.Header.Get("Upgrade"), t.Proto) {
		return nil, readAnswer(resp)
	}
	return early, nil
}

// exchange writes a request and reads the head of its answer. The body of an answer that switches protocols
// is left to the caller: what of it was read with the head is in early. Not more than maxHead bytes of any
// other are there.
func exchange(conn net.Conn, req *http.Request) (resp *http.Response, early []byte, err error) {
	if err := req.Write(conn); err != nil {
		return nil, nil, err
	}
	br := bufio.NewReader(io.LimitReader(conn, maxHead))
	for range 8 { // interim answers (103, RFC 8297) may come first
		if resp, err = http.ReadResponse(br, req); err != nil {
			return nil, nil, whatItSays(err)
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			rest, err := br.Peek(br.Buffered())
			return resp, bytes.Clone(rest), err
		}
		if resp.StatusCode/100 != 1 {
			return resp, nil, nil
		}
	}
	return nil, nil, errors.New("it gives interim answers only")
}

// errNotHTTP stands for every error about what was read, as against how: those quote it, at any length.
var errNotHTTP = errors.New("what it says is not HTTP")

func whatItSays(err error) error {
	var network net.Error
	if errors.As(err, &network) || isEnd(err) {
		return err
	}
	return errNotHTTP
}

// An answer is what came instead of an upgrade, from somebody who may be anybody. With err set nothing did.
type answer struct {
	status int
	server string // who says that it answers
	proto  string // set by a server of ours that saw no upgrade in the request
	moved  string // where a redirect leads
	err    error
}

func (a *answer) Error() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("HTTP %d", a.status)
}

func (a *answer) Unwrap() error { return a.err }

// worthWebSocket tells an intermediary that may know WebSocket from one that says that its server is down, or
// that somebody else is to be asked.
func (a *answer) worthWebSocket() bool {
	return a.status != http.StatusServiceUnavailable && a.status != http.StatusGatewayTimeout && a.moved == ""
}

// readAnswer turns an answer that is not an upgrade into an error: our own refusal, or an answer.
func readAnswer(resp *http.Response) error {
	if resp.Body != nil {
		defer resp.Body.Close()
	}
	if resp.Header.Get(headerError) != "" && resp.Body != nil {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorDocument))
		var e weft.Error
		if err == nil && json.Unmarshal(b, &e) == nil && e.Code != "" && e.Message != "" {
			e.Code, e.Message = weft.Code(Printable(string(e.Code), 40)), Printable(e.Message, 500)
			return &e
		}
	}
	a := &answer{
		status: resp.StatusCode,
		server: Printable(resp.Header.Get("Server"), 40),
		proto:  Printable(resp.Header.Get(headerProto), 40),
	}
	if resp.StatusCode/100 == 3 {
		a.moved = Printable(resp.Header.Get("Location"), 200)
	}
	return a
}

// Printable makes what a stranger wrote fit for a terminal: no control characters, and most bytes before it is cut.
func Printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// explain makes the one sentence of an attempt that failed; first is what the upgrade got when err is what
// the WebSocket got.
func (t *target) explain(err error, first *answer) error {
	var ours *weft.Error
	if errors.As(err, &ours) {
		return ours
	}
	name := t.URL
	var a *answer
	if !errors.As(err, &a) {
		return t.unreachable(err)
	}
	if a.err != nil && first != nil {
		a = first // the WebSocket was cut off; what the upgrade got before it says more
	}
	if a.err != nil {
		return t.unreachable(a.err)
	}
	who := ""
	if a.server != "" {
		who = " (" + a.server + ")"
	}
	tell := func(c weft.Code, format string, args ...any) error {
		return &weft.Error{Code: c, Message: fmt.Sprintf(format, args...)}
	}
	for _, x := range []*answer{a, first} {
		switch {
		case x == nil || x.proto == "":
		case !strings.EqualFold(x.proto, t.Proto):
			return tell(weft.CodeUnavailable, "%s speaks %s and this machine %s: update the older of the two", name, x.proto, t.Proto)
		default:
			return tell(weft.CodeUnavailable, "a proxy in front of %s%s takes the upgrade out of the request, and WebSocket too: "+
				"let it pass on both (nginx: proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection \"upgrade\";)", name, who)
		}
	}
	switch {
	case a.moved != "":
		return tell(weft.CodeNotFound, "%s sends its visitors on to %s: use the address where weft itself is, or connect this network to the internet if that is its login page", name, a.moved)
	case a.status >= 500:
		return tell(weft.CodeUnavailable, "%s%s answers HTTP %d: the proxy is up and the weft server behind it is not; it will be tried again", name, who, a.status)
	case a.status == http.StatusProxyAuthRequired || a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return tell(weft.CodeNotFound, "%s%s answers HTTP %d: something in between wants a login that weft has not; let it pass on %s unasked", name, who, a.status, t.url.Path)
	}
	return tell(weft.CodeNotFound, "%s%s answers HTTP %d at %s, which is not what a weft server says there: check the address, and that a proxy in front passes this path on", name, who, a.status, t.url.Path)
}

func (t *target) unreachable(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case isEnd(err), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%s closes the connection without an answer: check the address and port (%w)", t.URL, err)
	}
	if errors.Is(err, errNotHTTP) {
		return &weft.Error{Code: weft.CodeNotFound, Message: t.URL + " answers in something else than HTTP: check the address and port"}
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) {
		return &weft.Error{Code: weft.CodeNotFound, Message: t.URL + " does not speak TLS: if it is a weft server behind plain HTTP, its address begins with http://"}
	}
	var name *net.DNSError
	if errors.As(err, &name) {
		return fmt.Errorf("the name in %s cannot be looked up: check it, and this machine's network (%w)", t.URL, err)
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s does not answer: check the address, the port and this machine's network (%w)", t.URL, err)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s cannot be reached, for nothing listens there: start the server, or check the address and port (%w)", t.URL, err)
	}
	return fmt.Errorf("%s cannot be reached: check the address, and this machine's network (%w)", t.URL, err)
}
