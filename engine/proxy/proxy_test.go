package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/proxy"
)

const patience = 20 * time.Second

// overlay is a make-believe overlay: its addresses are dialled on loopback, at the same port.
type overlay struct {
	dials atomic.Int64
	err   error
}

var (
	overlayRange = netip.MustParsePrefix("100.64.0.0/10")
	webAddr      = netip.MustParseAddr("100.64.0.7")
)

func (o *overlay) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	o.dials.Add(1)
	if o.err != nil {
		return nil, o.err
	}
	if !overlayRange.Contains(addr.Addr()) {
		return nil, fmt.Errorf("asked to dial %v", addr)
	}
	return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", addr.Port()))
}

func resolve(name string) []netip.Addr {
	if name == "web.weft.internal" {
		return []netip.Addr{webAddr}
	}
	return nil
}

func listen(t testing.TB, o *overlay, change func(*Config)) *Proxy {
	t.Helper()
	cfg := Config{Dial: o.dial, Resolve: resolve, Overlay: overlayRange.Contains, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	p, err := Listen("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// webPage serves a page on loopback and returns the page and its port.
func webPage(t testing.TB) ([]byte, uint16) {
	t.Helper()
	page := make([]byte, 300<<10)
	rand.Read(page)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, h := range []string{"Proxy-Authorization", "Proxy-Connection"} {
			if r.Header.Get(h) != "" {
				http.Error(w, h+" leaked", http.StatusTeapot)
				return
			}
		}
		w.Header().Set("Seen-Host", r.Host)
		w.Header().Set("Seen-URI", r.RequestURI)
		w.Write(page)
	}))
	t.Cleanup(s.Close)
	return page, s.Listener.Addr().(*net.TCPAddr).AddrPort().Port()
}

func clientOf(p *Proxy, scheme, password string) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		Proxy: http.ProxyURL(&url.URL{
			Scheme: scheme, Host: p.Addr().String(), User: url.UserPassword(User, password),
		}),
	}}
}

func TestAPageIsFetchedByNameAndByAddressThroughBothProtocols(t *testing.T) {
	page, port := webPage(t)
	p := listen(t, &overlay{}, nil)
	for _, scheme := range []string{"http", "socks5h"} {
		for _, host := range []string{"web.weft.internal", webAddr.String()} {
			where := fmt.Sprintf("http://%s:%d/a%%2Fb?q=;1", host, port)
			res, err := clientOf(p, scheme, p.Password()).Get(where)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != 200 || !bytes.Equal(got, page) {
				t.Errorf("%s by %s: %s, %d of %d bytes, %v", where, scheme, res.Status, len(got), len(page), err)
			}
			if h, uri := res.Header.Get("Seen-Host"), res.Header.Get("Seen-URI"); h != fmt.Sprintf("%s:%d", host, port) || uri != "/a%2Fb?q=;1" {
				t.Errorf("%s by %s: the server saw host %q, %q", where, scheme, h, uri)
			}
		}
	}
}

// dialConnect opens a tunnel with CONNECT and returns it with what was answered.
func dialConnect(t *testing.T, p *Proxy, target, password string) (net.Conn, *http.Response) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	cred := base64.StdEncoding.EncodeToString([]byte(User + ":" + password))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic %s\r\n\r\n", target, target, cred)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	return c, res
}

// echo is a program that says everything back, and nothing after the end of data.
func echo(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func TestATunnelCarriesBothWaysAndPassesOnTheEndOfData(t *testing.T) {
	port := echo(t)
	p := listen(t, &overlay{}, nil)
	sent := make([]byte, 1<<20)
	rand.Read(sent)
	check := func(name string, c net.Conn) {
		go func() {
			c.Write(sent)
			c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d of %d bytes came back: %v", name, len(got), len(sent), err)
		}
	}
	c, res := dialConnect(t, p, fmt.Sprintf("web.weft.internal:%d", port), p.Password())
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	check("CONNECT", c)

	d, err := proxy.SOCKS5("tcp", p.Addr().String(), &proxy.Auth{User: User, Password: p.Password()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err = d.Dial("tcp", fmt.Sprintf("web.weft.internal:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	// The client of x/net hides CloseWrite; what it wraps has it.
	c.Write(sent[:1000])
	got := make([]byte, 1000)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent[:1000]) {
		t.Errorf("SOCKS5: %v", err)
	}
}

func TestDataThatComesWithTheRequestIsNotLost(t *testing.T) {
	port := echo(t)
	p := listen(t, &overlay{}, nil)
	c, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	cred := base64.StdEncoding.EncodeToString([]byte(User + ":" + p.Password()))
	fmt.Fprintf(c, "CONNECT %s:%d HTTP/1.1\r\nHost: x\r\nProxy-Authorization: basic %s\r\n\r\nearly bird", webAddr, port, cred)
	r := bufio.NewReader(c)
	if res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	got := make([]byte, len("early bird"))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "early bird" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNothingIsDialledWithoutThePassword(t *testing.T) {
	page, port := webPage(t)
	o := &overlay{}
	p := listen(t, o, nil)
	if _, err := clientOf(p, "socks5h", "wrong").Get(fmt.Sprintf("http://%s:%d/", webAddr, port)); err == nil {
		t.Error("SOCKS5 with a wrong password succeeds")
	}
	res, err := clientOf(p, "http", "wrong").Get(fmt.Sprintf("http://%s:%d/", webAddr, port))
	if err != nil || res.StatusCode != http.StatusProxyAuthRequired || !strings.HasPrefix(res.Header.Get("Proxy-Authenticate"), "Basic ") {
		t.Errorf("HTTP with a wrong password: %v, %v", res, err)
	}
	if _, res := dialConnect(t, p, fmt.Sprintf("%s:%d", webAddr, port), p.Password()+"x"); res.StatusCode != http.StatusProxyAuthRequired {
		t.Errorf("CONNECT with a wrong password: %s", res.Status)
	}
	// A web page makes the browser ask the port itself: such a request is not for a proxy.
	res, err = http.Get("http://" + p.Addr().String() + "/")
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("a request that is not for a proxy: %v, %v", res, err)
	}
	for _, raw := range []string{
		"\x05\x01\x00\x05\x01\x00\x01\x64\x40\x00\x07\x00\x50",                 // no authentication, and the request at once
		"\x05\x02\x00\x02\x01\x00\x00\x05\x01\x00\x01\x64\x40\x00\x07\x00\x50", // empty user and password
		"\x04\x01\x00\x50\x64\x40\x00\x07weft\x00",                             // SOCKS4
		"\x16\x03\x01\x02\x00",                                                 // TLS
		"\x05", "\x00", " GET",
	} {
		c, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, raw)
		c.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(c)
		c.Close()
		if len(got) > 4 {
			t.Errorf("%x is answered with %x", raw, got)
		}
	}
	if n := o.dials.Load(); n != 0 {
		t.Errorf("%d destinations were dialled", n)
	}
	_ = page
}

func TestWhatIsOutsideTheOverlayIsRefusedUnlessAllowed(t *testing.T) {
	page, port := webPage(t)
	where := fmt.Sprintf("127.0.0.1:%d", port)
	strict, open := &overlay{}, &overlay{}
	p := listen(t, strict, nil)
	res, err := clientOf(p, "http", p.Password()).Get("http://" + where + "/")
	if err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("HTTP to %s: %v, %v", where, res, err)
	}
	_, err = clientOf(p, "socks5", p.Password()).Get("http://" + where + "/")
	if err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("SOCKS5 to %s: %v", where, err)
	}
	res, err = clientOf(p, "http", p.Password()).Get("http://nowhere.example/")
	if err != nil || res.StatusCode != http.StatusBadGateway {
		t.Errorf("a name that is none: %v, %v", res, err)
	}
	if body, _ := io.ReadAll(res.Body); !strings.Contains(string(body), "no node of the overlay has this name") {
		t.Errorf("it says %q", body)
	}
	if strict.dials.Load() != 0 {
		t.Error("something was dialled in the overlay")
	}

	d := listen(t, open, func(c *Config) { c.Direct = true })
	res, err = clientOf(d, "http", d.Password()).Get("http://" + where + "/")
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("with Direct: %v, %v", res, err)
	}
	if got, _ := io.ReadAll(res.Body); !bytes.Equal(got, page) || open.dials.Load() != 0 {
		t.Errorf("with Direct: %d bytes, %d overlay dials", len(got), open.dials.Load())
	}
}

func TestFailuresAreToldInTheProtocolsWords(t *testing.T) {
	for _, c := range []struct {
		err    error
		reply  reply
		status int
	}{
		{syscall.ECONNREFUSED, replyRefused, 502},
		{syscall.ENETUNREACH, replyNetworkUnreachable, 502},
		{syscall.EHOSTUNREACH, replyHostUnreachable, 502},
		{syscall.ETIMEDOUT, replyTimedOut, 504},
		{context.DeadlineExceeded, replyTimedOut, 504},
		{errors.New("something"), replyFailure, 502},
		{errNotOverlay, replyNotAllowed, 403},
	} {
		err := errors.Join(&net.OpError{Op: "dial", Err: c.err})
		if got := replyOf(err); got != c.reply {
			t.Errorf("%v: reply %d, want %d", c.err, got, c.reply)
		}
		p := listen(t, &overlay{err: err}, nil)
		if _, res := dialConnect(t, p, webAddr.String()+":80", p.Password()); res.StatusCode != c.status {
			t.Errorf("%v: %s, want %d", c.err, res.Status, c.status)
		}
		p.Close()
	}
}

func TestTheProxyListensOnLoopbackOnly(t *testing.T) {
	cfg := Config{Dial: (&overlay{}).dial, Overlay: overlayRange.Contains, Logger: slog.New(slog.DiscardHandler)}
	for addr, want := range map[string]string{
		"0.0.0.0:0": "does not listen on 0.0.0.0", "[::]:0": "does not listen on ::", "192.0.2.1:1": "does not listen on",
		"1055": "write host:port", ":1055": "write host:port", "example.com:1": "write host:port", "127.0.0.1:99999": "write host:port",
	} {
		if p, err := Listen(addr, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", addr, err)
			if p != nil {
				p.Close()
			}
		}
	}
	p, err := Listen("localhost:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := Listen(p.Addr().String(), cfg); err == nil || !strings.Contains(err.Error(), "in use by another program") {
		t.Errorf("the same port again: %v", err)
	}
	cfg.Password = strings.Repeat("x", 256)
	if _, err := Listen("127.0.0.1:0", cfg); err == nil {
		t.Error("a password that SOCKS5 cannot carry is taken")
	}
	if a, b := NewPassword(), NewPassword(); a == b || len(a) < 24 {
		t.Errorf("passwords %q and %q", a, b)
	}
}

func TestClosingTheProxyEndsEveryConnection(t *testing.T) {
	port := echo(t)
	p := listen(t, &overlay{}, nil)
	tunnel, _ := dialConnect(t, p, fmt.Sprintf("%s:%d", webAddr, port), p.Password())
	viaSOCKS, r, _ := socks(t, p, commandConnect, appendAddr(nil, netip.AddrPortFrom(webAddr, port)))
	association, _, _ := socks(t, p, commandAssociate, appendAddr(nil, netip.AddrPort{}))
	silent, err := net.Dial("tcp", p.Addr().String())
	if err != nil || r != replySucceeded {
		t.Fatal(r, err)
	}
	defer silent.Close()
	done := make(chan struct{})
	go func() { defer close(done); p.Close() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("Close hangs")
	}
	for i, c := range []net.Conn{tunnel, viaSOCKS, association, silent} {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("connection %d goes on: %v", i, err)
		}
	}
	if len(p.places) != 0 || len(p.conns) != 0 {
		t.Errorf("%d places and %d connections are left", len(p.places), len(p.conns))
	}
}
