package stream

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func parseProxyAuth(r *http.Request) (user, password string, ok bool) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(b), ":")
}

func TestGarbageOnThePortIsClosedQuietlyAndHarmsNobody(t *testing.T) {
	addr, _, _ := serveTLS(t, echo(t))
	long := strings.Repeat("A", 1<<20)
	for name, b := range map[string]string{
		"nothing":                 "",
		"one zero":                "\x00",
		"one byte of TLS":         "\x16",
		"TLS of version 9.9":      "\x16\x09\x09\x00\x05hello",
		"a TLS record of no end":  "\x16\x03\x01\xff\xff" + long,
		"SSH":                     "SSH-2.0-OpenSSH_9.2\r\n",
		"SMTP":                    "EHLO x\r\n",
		"a WireGuard packet":      "\x01\x00\x00\x00" + long[:144],
		"a method of no end":      long,
		"a head of no end":        "GET / HTTP/1.1\r\nX: " + long,
		"many headers":            "GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 200_000),
		"a NUL in the path":       "GET /\x00 HTTP/1.1\r\n\r\n",
		"no host":                 "GET /weft/echo HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: weft-echo/1\r\n\r\n",
		"HTTP/0.9":                "GET /weft/echo\r\n\r\n",
		"HTTP/2 in clear":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"an upgrade to nothing":   "GET /weft/echo HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: \r\n\r\n",
		"a WebSocket of no key":   "GET /weft/echo HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: weft-echo/1\r\n\r\n",
		"a handshake header long": "GET /weft/echo HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: weft-echo/1\r\nWeft-Handshake: " + long[:100_000] + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			go func() {
				io.WriteString(c, b)
				c.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the connection stays open; so far it said %q", got)
			}
			if b != "" && (b[0] < 'A' || b[0] > 'Z') && b[0] != recordHandshake && len(got) > 0 {
				t.Errorf("garbage is answered with %q", got)
			}
			conn, _, err := Dial(testContext(t), Options{URL: "https://" + addr, Path: testPath, Proto: testProto})
			if err != nil {
				t.Fatalf("somebody else: %v", err)
			}
			checkEcho(t, conn, 10)
			conn.Close()
		})
	}
}

func TestAClientWithoutAFirstByteHoldsUpNobody(t *testing.T) {
	cert, _ := certificate(t)
	raw := listen(t)
	l := Listener(raw, &tls.Config{Certificates: []tls.Certificate{cert}})
	var slow []net.Conn
	for range 100 {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		slow = append(slow, c)
	}
	serve(t, l, echo(t))
	conn, _, err := Dial(testContext(t), Options{URL: "https://" + raw.Addr().String(), Path: testPath, Proto: testProto})
	if err != nil {
		t.Fatal(err)
	}
	checkEcho(t, conn, 10)
	conn.Close()
	eventually(t, "all slow clients are held", func() bool {
		s := l.(*sniffer)
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) == len(slow)
	})
	l.Close()
	for _, c := range slow {
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a client in waiting outlives its listener: %v", err)
		}
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener says %v", err)
	}
}

func TestWhoOpensManyAndSaysNothingKeepsNobodyOut(t *testing.T) {
	raw := listen(t)
	l := Listener(raw, nil)
	s := l.(*sniffer)
	s.mu.Lock()
	s.most = 20
	s.mu.Unlock()
	serve(t, l, echo(t))
	for range 100 {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	eventually(t, "the silent ones are bounded", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) == 20
	})
	for range 10 {
		conn, _, err := Dial(testContext(t), Options{URL: "http://" + raw.Addr().String(), Path: testPath, Proto: testProto})
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}

// flaky fails a few times as if descriptors had run out.
type flaky struct {
	net.Listener
	left int
}

type temporary struct{ error }

func (temporary) Temporary() bool { return true }
func (temporary) Timeout() bool   { return false }

func (f *flaky) Accept() (net.Conn, error) {
	if f.left--; f.left >= 0 {
		return nil, temporary{errors.New("too many open files")}
	}
	return f.Listener.Accept()
}

func TestRunningOutOfDescriptorsDoesNotEndTheListener(t *testing.T) {
	raw := listen(t)
	serve(t, Listener(&flaky{raw, 3}, nil), echo(t))
	conn, _, err := Dial(testContext(t), Options{URL: "http://" + raw.Addr().String(), Path: testPath, Proto: testProto})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
