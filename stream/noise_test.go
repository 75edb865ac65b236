package stream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"weft"
	"weft/key"
)

// noiseEcho answers each message with itself, in front of it the key that the handshake proved.
func noiseEcho(t testing.TB, server key.ServerPrivate, limit int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(testPath, func(w http.ResponseWriter, r *http.Request) {
		m, machine, err := AcceptNoise(w, r, testProto, server)
		if err != nil {
			return
		}
		defer m.Close()
		for {
			b, err := m.ReadMessage(limit)
			if err != nil {
				return
			}
			if err := m.WriteMessage(append([]byte(machine.String()), b...)); err != nil {
				return
			}
		}
	})
	return mux
}

func TestNoiseMessagesRoundTripOverEveryTransport(t *testing.T) {
	server, machine := key.NewPrivate[key.Server](), key.NewPrivate[key.Machine]()
	h := noiseEcho(t, server, 20<<20)
	secure, _, fingerprint := serveTLS(t, h)
	big := make([]byte, 16<<20)
	for i := range big {
		big[i] = byte(i >> 11)
	}
	for _, c := range []struct {
		name, url string
		want      Transport
	}{
		{"plain", "http://" + serve(t, listen(t), h), Upgrade},
		{"TLS", "https://" + secure, Upgrade},
		{"WebSocket", "http://" + serve(t, listen(t), stripUpgrade(h)), WebSocket},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := DialNoise(testContext(t), Options{URL: c.url, Path: testPath, Proto: testProto, Fingerprint: fingerprint}, machine, server.Public())
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Info().Transport != c.want {
				t.Errorf("came by %s", m.Info().Transport)
			}
			for _, b := range [][]byte{nil, []byte("a"), big[:65515], big[:65516], big} {
				go func() {
					if err := m.WriteMessage(b); err != nil {
						t.Error(err)
					}
				}()
				got, err := m.ReadMessage(20 << 20)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != machine.Public().String()+string(b) {
					t.Fatalf("a message of %d bytes came back as %d others", len(b), len(got))
				}
			}
		})
	}
}

func TestAServerWithAnotherKeySaysSoBeforeAnythingIsUpgraded(t *testing.T) {
	server, other, machine := key.NewPrivate[key.Server](), key.NewPrivate[key.Server](), key.NewPrivate[key.Machine]()
	upgraded := false
	addr := serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, err := AcceptNoise(w, r, testProto, other)
		upgraded = upgraded || err == nil
	}))
	_, err := DialNoise(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: testProto}, machine, server.Public())
	if !errors.Is(err, &weft.Error{Code: weft.CodeWrongServer}) || upgraded {
		t.Fatalf("upgraded: %v, error: %v", upgraded, err)
	}
	checkSentence(t, err)
	if !strings.Contains(err.Error(), "the server at http://"+addr+" does not hold the key in the token") || !strings.Contains(err.Error(), "new token") {
		t.Errorf("says %q", err)
	}
	// Another protocol's handshake is as foreign as another key's.
	addr = serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Upgrade", testProto)
		AcceptNoise(w, r, testProto, server)
	}))
	_, err = DialNoise(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: "weft-other/1"}, machine, server.Public())
	if weft.CodeOf(err) != weft.CodeWrongServer {
		t.Errorf("another protocol's handshake: %v", err)
	}
}

func TestWhoOnlyPretendsToBeTheServerIsFoundOut(t *testing.T) {
	server, machine := key.NewPrivate[key.Server](), key.NewPrivate[key.Machine]()
	for name, reply := range map[string]string{
		"of the right length": "\x00\x30" + strings.Repeat("x", 48),
		"of another length":   "\x01\x00" + strings.Repeat("x", 256),
		"in words":            "welcome, node, please come in and make yourself at home, we have been expecting you",
	} {
		addr := serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := Accept(w, r, testProto)
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, reply)
			io.Copy(io.Discard, c)
		}))
		_, err := DialNoise(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: testProto}, machine, server.Public())
		if weft.CodeOf(err) != weft.CodeWrongServer {
			t.Errorf("a reply %s: %v", name, err)
		}
	}
}

func TestAStrangersFinalWordIsNotBelieved(t *testing.T) {
	server, machine := key.NewPrivate[key.Server](), key.NewPrivate[key.Machine]()
	for _, code := range []weft.Code{weft.CodeRemoved, weft.CodeExpiredNode, weft.CodeBadToken, weft.CodeDenied, weft.CodeExhausted} {
		addr := serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			WriteError(w, http.StatusForbidden, &weft.Error{Code: code, Message: "go away"})
		}))
		_, err := DialNoise(testContext(t), Options{URL: "http://" + addr, Path: testPath, Proto: testProto}, machine, server.Public())
		if err == nil || weft.CodeOf(err).Permanent() || !strings.Contains(err.Error(), "go away") {
			t.Errorf("%s arrives as %s: %v", code, weft.CodeOf(err), err)
		}
	}
}

func TestABadHandshakeHeaderIsRefusedBeforeAnythingIsUpgraded(t *testing.T) {
	server := key.NewPrivate[key.Server]()
	addr := serve(t, listen(t), noiseEcho(t, server, 100))
	lowOrder := base64.RawURLEncoding.EncodeToString(make([]byte, initiationSize))
	for name, c := range map[string]struct {
		value string
		code  weft.Code
	}{
		"none":         {"", weft.CodeBadRequest},
		"short":        {"AAAA", weft.CodeBadRequest},
		"not base64":   {strings.Repeat("!", 128), weft.CodeBadRequest},
		"too long":     {strings.Repeat("A", 132), weft.CodeBadRequest},
		"an hour long": {strings.Repeat("A", 60_000), weft.CodeBadRequest},
		"zeros":        {lowOrder, weft.CodeWrongServer},
	} {
		o := Options{URL: "http://" + addr, Path: testPath, Proto: testProto, Header: http.Header{}}
		if c.value != "" {
			o.Header.Set(headerHandshake, c.value)
		}
		_, _, err := Dial(testContext(t), o)
		if weft.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	two := Options{URL: "http://" + addr, Path: testPath, Proto: testProto, Header: http.Header{headerHandshake: {lowOrder, lowOrder}}}
	if _, _, err := Dial(testContext(t), two); weft.CodeOf(err) != weft.CodeBadRequest {
		t.Errorf("two headers: %v", err)
	}
}

func TestARecordedHandshakeSentAgainProvesNothing(t *testing.T) {
	server, machine := key.NewPrivate[key.Server](), key.NewPrivate[key.Machine]()
	var recorded http.Header
	read := make(chan error, 2)
	addr := serve(t, listen(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if recorded == nil {
			recorded = r.Header.Clone()
		}
		m, _, err := AcceptNoise(w, r, testProto, server)
		if err != nil {
			read <- fmt.Errorf("refused: %w", err)
			return
		}
		defer m.Close()
		_, err = m.ReadMessage(1000)
		read <- err
	}))
	o := Options{URL: "http://" + addr, Path: testPath, Proto: testProto}
	m, err := DialNoise(testContext(t), o, machine, server.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WriteMessage([]byte("it is me")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	m.Close()

	o.Header = http.Header{headerHandshake: recorded[headerHandshake]}
	conn, _, err := Dial(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("\x00\x20" + strings.Repeat("x", 32)))
	if err := <-read; !errors.Is(err, ErrRecord) {
		t.Errorf("a message under a recorded handshake: %v", err)
	}
}

func FuzzHandshakeHeader(f *testing.F) {
	f.Add("")
	f.Add("AAAA")
	f.Add(base64.RawURLEncoding.EncodeToString(make([]byte, initiationSize)))
	f.Add(strings.Repeat("_", 128))
	f.Add(strings.Repeat("=", 128))
	f.Fuzz(func(t *testing.T, s string) {
		b, err := parseInitiation(http.Header{headerHandshake: {s}})
		if err == nil && (len(b) != initiationSize || base64.RawURLEncoding.EncodeToString(b) != s) {
			t.Errorf("%q is read as %x", s, b)
		}
	})
}

// FuzzAnswerOfAServer answers in any way: the error is a sentence, and nothing of the server's is in it unbounded.
func FuzzAnswerOfAServer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: weft-echo/1\r\nConnection: upgrade\r\n\r\nrest"))
	f.Add([]byte("HTTP/1.1 403 Forbidden\r\nWeft-Error: 1\r\nContent-Length: 30\r\n\r\n{\"code\":\"x\",\"message\":\"a\\u001bb\"}"))
	f.Add([]byte("HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nWeft-Error: 1\r\n\r\nffffffffffffffff\r\n"))
	f.Add([]byte("\x16\x03\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := Options{URL: "http://server.invalid", Path: testPath, Proto: testProto}
		o.Proxy = noProxy
		o.DialContext = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				go io.Copy(io.Discard, there)
				there.Write(b)
				there.Close()
			}()
			return here, nil
		}
		conn, info, err := Dial(t.Context(), o)
		if err != nil {
			checkSentence(t, err)
			return
		}
		conn.Close()
		if info.TLS != TLSNone {
			t.Errorf("info is %+v", info)
		}
	})
}
