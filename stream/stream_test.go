package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft"
)

// TestMain sets the proxy of the environment, which net/http reads once. It does not apply to loopback
// addresses, which is all that the other tests use.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		os.Setenv(name, "http://someone:s3cret@proxy.test:3128")
	}
	os.Setenv("NO_PROXY", "")
	os.Exit(m.Run())
}

const (
	testPath  = "/weft/echo"
	testProto = "weft-echo/1"
)

// quiet is the error log of the tests' HTTP servers.
var quiet = log.New(io.Discard, "", 0)

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls real IO.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		if f() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serve runs an HTTP server with tight deadlines, which a stream must outlive.
func serve(t testing.TB, l net.Listener, h http.Handler) string {
	s := &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, ErrorLog: quiet}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// echo accepts streams and sends back what comes.
func echo(t testing.TB) http.Handler {
	var conns sync.WaitGroup
	t.Cleanup(conns.Wait)
	mux := http.NewServeMux()
	mux.HandleFunc(testPath, func(w http.ResponseWriter, r *http.Request) {
		conns.Add(1)
		defer conns.Done()
		c, err := Accept(w, r, testProto)
		if err != nil {
			return
		}
		defer c.Close()
		if _, ok := TCPConn(c); !ok {
			t.Error("the socket is not found below the server's end")
		}
		io.Copy(c, c)
	})
	return mux
}

func certificate(t testing.TB) (tls.Certificate, []byte) {
	dir := t.TempDir()
	cert, fingerprint, err := LoadOrCreateCertificate(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), []string{"127.0.0.1", "weft.test"})
	if err != nil {
		t.Fatal(err)
	}
	return cert, fingerprint
}

func serveTLS(t testing.TB, h http.Handler) (addr string, cert tls.Certificate, fingerprint []byte) {
	cert, fingerprint = certificate(t)
	return serve(t, Listener(listen(t), &tls.Config{Certificates: []tls.Certificate{cert}}), h), cert, fingerprint
}

// checkEcho sends n bytes while it reads them back.
func checkEcho(t testing.TB, c net.Conn, n int) {
	t.Helper()
	sent := make([]byte, n)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	go c.Write(sent)
	got := make([]byte, n)
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("reading the echo: %v", err)
	}
	if !bytes.Equal(got, sent) {
		t.Fatal("the echo differs from what was sent")
	}
}

func TestAStreamCarriesBytesOverEveryTransport(t *testing.T) {
	plain := serve(t, listen(t), echo(t))
	stripped := serve(t, listen(t), stripUpgrade(echo(t)))
	secure, cert, fingerprint := serveTLS(t, echo(t))
	secureStripped, _, _ := serveTLS(t, stripUpgrade(echo(t)))
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	other := sha256.Sum256([]byte("another certificate"))

	for _, c := range []struct {
		name string
		o    Options
		want Info
	}{
		{"plain HTTP", Options{URL: "http://" + plain}, Info{Transport: Upgrade, TLS: TLSNone}},
		{"plain HTTP on the port that also has TLS", Options{URL: "http://" + secure}, Info{Transport: Upgrade, TLS: TLSNone}},
		{"TLS, nobody vouches", Options{URL: "https://" + secure}, Info{Transport: Upgrade, TLS: TLSUnverified}},
		{"TLS, pinned", Options{URL: "https://" + secure, Fingerprint: fingerprint}, Info{Transport: Upgrade, TLS: TLSPinned}},
		{"TLS, another certificate than the pinned", Options{URL: "https://" + secure, Fingerprint: other[:]}, Info{Transport: Upgrade, TLS: TLSUnverified}},
		{"TLS, roots vouch", Options{URL: "https://" + secure, Roots: roots}, Info{Transport: Upgrade, TLS: TLSVerified}},
		{"TLS, another than pinned but roots vouch", Options{URL: "https://" + secure, Roots: roots, Fingerprint: other[:]}, Info{Transport: Upgrade, TLS: TLSVerified}},
		{"upgrade stripped", Options{URL: "http://" + stripped}, Info{Transport: WebSocket, TLS: TLSNone}},
		{"upgrade stripped, TLS pinned", Options{URL: "https://" + secureStripped}, Info{Transport: WebSocket, TLS: TLSUnverified}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Path, c.o.Proto = testPath, testProto
			conn, info, err := Dial(testContext(t), c.o)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if info != c.want {
				t.Errorf("info is %+v, want %+v", info, c.want)
			}
			if _, ok := TCPConn(conn); !ok {
				t.Error("the socket is not found below the stream")
			}
			if got := conn.RemoteAddr().String(); got != strings.TrimPrefix(strings.TrimPrefix(c.o.URL, "https://"), "http://") {
				t.Errorf("the remote address is %s", got)
			}
			checkEcho(t, conn, 3<<20)
		})
	}
}

// stripUpgrade is an intermediary that knows no upgrade but WebSocket.
func stripUpgrade(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			r.Header.Del("Upgrade")
			r.Header.Del("Connection")
		}
		h.ServeHTTP(w, r)
	})
}

func TestAPathPrefixOfTheURLIsKept(t *testing.T) {
	addr := serve(t, listen(t), http.StripPrefix("/deep/down", echo(t)))
	conn, _, err := Dial(testContext(t), Options{URL: "http://" + addr + "/deep/down/", Path: testPath, Proto: testProto})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	checkEcho(t, conn, 100)
}

func TestBytesSentRightBehindTheHeadAreNotLost(t *testing.T) {
	l := listen(t)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		http.ReadRequest(newReader(c))
		fmt.Fprintf(c, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nhello from the server", testProto)
	}()
	conn, _, err := Dial(testContext(t), Options{URL: "http://" + l.Addr().String(), Path: testPath, Proto: testProto})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, _ := io.ReadAll(conn)
	if string(got) != "hello from the server" {
		t.Errorf("got %q", got)
	}

	// And the other way: a client that does not wait for the answer.
	raw, err := net.Dial("tcp", serve(t, listen(t), echo(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	fmt.Fprintf(raw, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nearly", testPath, testProto)
	br := newReader(raw)
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	early := make([]byte, 5)
	if _, err := io.ReadFull(br, early); err != nil || string(early) != "early" {
		t.Errorf("got %q, %v", early, err)
	}
}

func TestTheEnvironmentsProxyIsAskedForATunnel(t *testing.T) {
	addr, _, fingerprint := serveTLS(t, echo(t))
	var mu sync.Mutex
	var asked []string
	proxy := serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := parseProxyAuth(r)
		if !ok || user != "someone" || password != "s3cret" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		mu.Lock()
		asked = append(asked, r.Method+" "+r.Host)
		mu.Unlock()
		if strings.HasPrefix(r.Host, "forbidden.test") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		up, err := net.Dial("tcp", addr)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer up.Close()
		down, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer down.Close()
		down.SetDeadline(time.Time{})
		io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { io.Copy(up, down); up.(*net.TCPConn).CloseWrite() }()
		io.Copy(down, up)
	}))
	dialer := func(ctx context.Context, network, to string) (net.Conn, error) {
		if to != "proxy.test:3128" {
			return nil, fmt.Errorf("dialled %s, not the proxy", to)
		}
		return (&net.Dialer{}).DialContext(ctx, network, proxy)
	}
	for _, url := range []string{"http://behind.test", "https://behind.test:8443"} {
		o := Options{URL: url, Path: testPath, Proto: testProto, DialContext: dialer, Fingerprint: fingerprint}
		conn, info, err := Dial(testContext(t), o)
		if err != nil {
			t.Fatal(err)
		}
		if info.Proxy != "proxy.test:3128" || info.Transport != Upgrade {
			t.Errorf("info is %+v", info)
		}
		checkEcho(t, conn, 100_000)
		conn.Close()
	}
	mu.Lock()
	if got := strings.Join(asked, ", "); got != "CONNECT behind.test:80, CONNECT behind.test:8443" {
		t.Errorf("the proxy was asked for %s", got)
	}
	mu.Unlock()
	_, _, err := Dial(testContext(t), Options{URL: "https://forbidden.test", Path: testPath, Proto: testProto, DialContext: dialer})
	if err == nil || weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(err.Error(), "refuses a tunnel to forbidden.test:443") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a refused tunnel says %v", err)
	}
}

func TestWhatIsNoWeftServerIsToldInOneSentence(t *testing.T) {
	answer := func(status int, header ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			io.WriteString(w, "<html>some page</html>")
		})
	}
	never := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Upgrade")
		Accept(w, r, testProto)
	})
	newer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { Accept(w, r, "weft-echo/2") })
	for _, c := range []struct {
		name string
		h    http.Handler
		code weft.Code
		want string
	}{
		{"a page", answer(200), weft.CodeNotFound, "answers HTTP 200 at /weft/echo, which is not what a weft server says there"},
		{"nginx without the path", answer(404, "Server", "nginx/1.22.1"), weft.CodeNotFound, "(nginx/1.22.1) answers HTTP 404"},
		{"a proxy whose server is down", answer(502), weft.CodeUnavailable, "the proxy is up and the weft server behind it is not"},
		{"a proxy that says so", answer(503), weft.CodeUnavailable, "the proxy is up and the weft server behind it is not"},
		{"a captive portal", answer(302, "Location", "http://login.hotel.example/"), weft.CodeNotFound, "sends its visitors on to http://login.hotel.example/"},
		{"a login", answer(401), weft.CodeNotFound, "wants a login that weft has not"},
		{"a proxy that strips everything", never, weft.CodeUnavailable, "takes the upgrade out of the request, and WebSocket too"},
		{"another version", newer, weft.CodeUnavailable, "speaks weft-echo/2 and this machine weft-echo/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := serve(t, listen(t), c.h)
			_, _, err := Dial(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: testProto})
			if err == nil {
				t.Fatal("there is a stream")
			}
			checkSentence(t, err)
			if weft.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), addr) {
				t.Errorf("%s: %v", weft.CodeOf(err), err)
			}
			if weft.CodeOf(err).Permanent() {
				t.Errorf("a stranger's word is final: %v", err)
			}
		})
	}
}

func checkSentence(t testing.TB, err error) {
	t.Helper()
	if s := err.Error(); strings.ContainsAny(s, "\n\r\t\x1b") || len(s) > 600 {
		t.Errorf("not one sentence: %q", s)
	}
}

func TestAnUnreachableServerIsToldInOneSentence(t *testing.T) {
	closed := listen(t)
	closed.Close()
	silent := listen(t)
	hangsUp := listen(t)
	go func() {
		for {
			c, err := hangsUp.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	babbles := listen(t)
	go func() {
		for {
			c, err := babbles.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "220 mail.example ESMTP\r\n")
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	for _, c := range []struct{ name, url, want string }{
		{"nobody listens", "http://" + closed.Addr().String(), "cannot be reached"},
		{"silence", "http://" + silent.Addr().String(), "does not answer"},
		{"silence under TLS", "https://" + silent.Addr().String(), "does not answer"},
		{"it hangs up", "http://" + hangsUp.Addr().String(), "closes the connection without an answer"},
		{"another protocol", "http://" + babbles.Addr().String(), "answers in something else than HTTP"},
		{"another protocol under TLS", "https://" + babbles.Addr().String(), "does not speak TLS"},
		{"no address", "https://", "names no host"},
		{"no scheme", "example.com", "must begin with https://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, _, err := Dial(ctx, Options{URL: c.url, Path: testPath, Proto: testProto})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("says %v", err)
			}
			checkSentence(t, err)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, _, err := Dial(ctx, Options{URL: "http://" + silent.Addr().String(), Path: testPath, Proto: testProto}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Dial says %v", err)
	}
}

func TestARefusalOfOursArrivesAsItWasMeant(t *testing.T) {
	requests := 0
	addr := serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		WriteError(w, http.StatusServiceUnavailable, &weft.Error{Code: weft.CodeExhausted, Message: "full: try\x1b[2J later"})
	}))
	_, _, err := Dial(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: testProto})
	var e *weft.Error
	if !errors.As(err, &e) || e.Code != weft.CodeExhausted || e.Message != "full: try [2J later" {
		t.Errorf("got %#v", err)
	}
	if requests != 1 {
		t.Errorf("%d requests for one refusal", requests)
	}
}

func TestABrowsersPageOfAnotherSiteGetsNoStream(t *testing.T) {
	addr := serve(t, listen(t), echo(t))
	for _, c := range []struct {
		origin string
		ok     bool
	}{{"https://evil.example", false}, {"null", false}, {"http://" + addr, true}, {"", true}} {
		for _, h := range []http.Handler{echo(t), stripUpgrade(echo(t))} {
			addr := addr
			o := Options{Path: testPath, Proto: testProto, Header: http.Header{}}
			if _, stripped := h.(http.HandlerFunc); stripped {
				addr = serve(t, listen(t), h)
			}
			o.URL = "http://" + addr
			if origin := c.origin; origin != "" {
				if c.ok {
					origin = "http://" + addr
				}
				o.Header.Set("Origin", origin)
			}
			conn, _, err := Dial(testContext(t), o)
			if (err == nil) != c.ok {
				t.Errorf("Origin %q: %v", c.origin, err)
			}
			if err == nil {
				conn.Close()
			} else if weft.CodeOf(err) != weft.CodeDenied {
				t.Errorf("Origin %q: %v", c.origin, err)
			}
		}
	}
}

func TestAStreamOutlivesTheServersDeadlines(t *testing.T) {
	for _, wrap := range []func(http.Handler) http.Handler{func(h http.Handler) http.Handler { return h }, stripUpgrade} {
		l := listen(t)
		s := &http.Server{Handler: wrap(echo(t)), ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond, ErrorLog: quiet}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		began := time.Now()
		conn, _, err := Dial(testContext(t), Options{URL: "http://" + l.Addr().String(), Path: testPath, Proto: testProto})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		eventually(t, "both deadlines are past", func() bool { return time.Since(began) > 150*time.Millisecond })
		checkEcho(t, conn, 1000)
	}
}

func TestADeadlineEndsAReadAndAClosedPeerIsEOF(t *testing.T) {
	for _, wrap := range []func(http.Handler) http.Handler{func(h http.Handler) http.Handler { return h }, stripUpgrade} {
		closing := make(chan struct{})
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c, err := Accept(w, r, testProto); err == nil {
				<-closing
				c.Close()
			}
		})
		addr := serve(t, listen(t), wrap(h))
		o := Options{URL: "http://" + addr, Path: testPath, Proto: testProto}
		conn, info, err := Dial(testContext(t), o)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: a read past its deadline returns %v", info.Transport, err)
		}
		conn.Close()
		conn, _, err = Dial(testContext(t), o)
		if err != nil {
			t.Fatal(err)
		}
		close(closing)
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the end of the stream reads as %v", info.Transport, err)
		}
		began := time.Now()
		conn.Close()
		if time.Since(began) > time.Second {
			t.Errorf("%s: closing took %v", info.Transport, time.Since(began))
		}
	}
}
