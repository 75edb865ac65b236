package cli

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weft"
	"weft/wire"
)

// What may stand at the address where a server was: nothing, something else, another server.

// unjoined starts a node whose token leads to an address, and returns what weft status says of it.
func unjoined(t *testing.T, token wire.Token, scheme, addr string) (n *testNode, problem func(words string)) {
	t.Helper()
	token.URL = scheme + "://" + addr
	n = newNode(t)
	n.process = start(t, n.command(keepSecret(t, token.String()).String()))
	return n, func(words string) {
		t.Helper()
		wait(t, "the status to say "+words, func() error {
			r := n.run("status")
			checkWords(t, r)
			var found string
			for line := range strings.Lines(r.out) {
				if strings.HasPrefix(line, "! ") {
					found += line
				}
			}
			if strings.Count(found, "\n") != 1 || !strings.Contains(found, words) || !strings.Contains(found, token.URL) {
				return fmt.Errorf("the problem is %q", found)
			}
			if r.code != ExitFailed {
				return fmt.Errorf("exit code %d", r.code)
			}
			return nil
		})
		if err := n.running(); err != nil {
			t.Error(err)
		}
	}
}

// listen takes connections on loopback until the test ends.
func listen(t *testing.T, serve func(net.Conn)) string {
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
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestWhateverAnswersInsteadOfTheServerIsToldApart(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	token, err := wire.ParseToken(srv.first)
	if err != nil {
		t.Fatal(err)
	}
	quiet := func(s *httptest.Server) *httptest.Server {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		t.Cleanup(s.Close)
		return s
	}
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "shop/1.0")
		fmt.Fprintln(w, "<html>Buy here")
	})
	web := quiet(httptest.NewUnstartedServer(page))
	web.Start()
	secure := quiet(httptest.NewUnstartedServer(page))
	secure.StartTLS()
	portal := quiet(httptest.NewUnstartedServer(http.RedirectHandler("https://login.hotel.example/", http.StatusFound)))
	portal.StartTLS()
	gateway := quiet(httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no backend", http.StatusBadGateway)
	})))
	gateway.StartTLS()
	endless := quiet(httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintln(w, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	})))
	endless.StartTLS()
	// Speaks our upgrade, and then has no key.
	impostor := quiet(httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s", wire.ControlProto, strings.Repeat("\x00\x30x", 100))
		rw.Flush()
		io.Copy(io.Discard, io.LimitReader(c, 1000))
	})))
	impostor.StartTLS()
	liar := quiet(httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Weft-Error", "1")
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(weft.Error{Code: weft.CodeRemoved, Message: "you were\x1b[2J removed"})
	})))
	liar.StartTLS()
	noise := listen(t, func(c net.Conn) {
		b := make([]byte, 4096)
		for i := range b {
			b[i] = byte(rand.Uint32())
		}
		c.Write(b)
		io.Copy(io.Discard, io.LimitReader(c, 1000))
	})
	tlsNoise := listen(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: secure.TLS.Certificates})
		if s.Handshake() == nil {
			s.Write([]byte("\x00\xff\x00 220 mail.example ESMTP\r\n"))
			io.Copy(io.Discard, io.LimitReader(s, 1000))
		}
	})
	nothing := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	hangup := listen(t, func(net.Conn) {})
	at := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for _, c := range []struct{ name, scheme, addr, words string }{
		{"nothing", "https", nothing, "cannot be reached, for nothing listens there"},
		{"a name that there is not", "https", "weft.invalid:443", "cannot be looked up: check it"},
		{"something that hangs up", "https", hangup, "closes the connection without an answer: check the address and port"},
		{"noise", "https", noise, "does not speak TLS"},
		{"noise without TLS", "http", noise, "something else than HTTP: check the address and port"},
		{"noise within TLS", "https", tlsNoise, "something else than HTTP: check the address and port"},
		{"a web site", "https", at(secure), "(shop/1.0) answers HTTP 200"},
		{"a web site without TLS", "http", at(web), "(shop/1.0) answers HTTP 200"},
		{"a web site without TLS, asked for TLS", "https", at(web), "does not speak TLS"},
		{"a web site with TLS, asked without", "http", at(secure), "check the address"},
		{"a login page", "https", at(portal), "sends its visitors on to https://login.hotel.example/"},
		{"a proxy whose server is down", "https", at(gateway), "the proxy is up and the weft server behind it is not"},
		{"a site without an end", "https", at(endless), "answers HTTP 200"},
		{"an impostor", "https", at(impostor), "does not hold the key in the token"},
		{"a liar", "https", at(liar), "without proving that it is the server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.name == "an impostor" { // of whom it is sure that trying again is useless, as far as it never joined
				token := token
				token.URL = c.scheme + "://" + c.addr
				n := newNode(t)
				fails(t, start(t, n.command(token.String())).end(), ExitFailed, c.words)
				return
			}
			n, problem := unjoined(t, token, c.scheme, c.addr)
			problem(c.words)
			said := n.stop()
			if strings.Contains(said.err, "\x1b") {
				t.Errorf("it let a stranger write to the terminal: %q", said.err)
			}
			if strings.Contains(said.err, "tunnels go on") {
				t.Errorf("a node without a network says that its tunnels go on:\n%s", said.err)
			}
		})
	}
}

func TestAServerWhoseKeyHasChangedIsNotFollowedAndTheOldOneIsTakenBack(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	ann, bob := newNode(t), newNode(t)
	ann.start(srv.first, "--name", "ann")
	bob.start(srv.first, "--name", "bob")
	ann.connected()
	ann.reaches("bob")
	before := ann.status().Self
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	relayDir := t.TempDir()
	relay := startWeft(t, "relay", "--data", relayDir, "--listen", addr, "--stun", addr, "--url", "https://"+addr, "--token", srv.token("--relay"))
	relay.says("member of the network")

	srv.stop()
	impostor := &testServer{t: t, dir: t.TempDir(), port: srv.port, url: srv.url} // set up anew at the same address
	impostor.start()
	for _, n := range []*testNode{ann, bob} {
		wait(t, "the node to see it", func() error {
			r := n.run("status")
			if r.code != ExitFailed || !strings.Contains(r.out, "does not hold the key in the token") || !strings.Contains(r.out, "weft admin key create") {
				return fmt.Errorf("%+v", r)
			}
			return nil
		})
	}
	ann.reaches("bob") // tunnels are nobody's but the nodes'
	if r := impostor.admin("node", "list", "--json"); strings.Contains(r.out, "machine") {
		t.Errorf("nodes joined a server that they do not know: %s", r.out)
	}
	if err := relay.running(); err != nil {
		t.Error(err)
	}

	impostor.stop()
	srv.start()
	if r := ann.run("up"); r.code != ExitOK {
		t.Errorf("up with the right server again: %+v", r)
	}
	ann.connected()
	if after := ann.status().Self; after.ID != before.ID || after.Key != before.Key {
		t.Errorf("%+v became %+v", before, after)
	}
	if n := strings.Count(ann.err.String(), "level=ERROR"); n != 1 {
		t.Errorf("the log tells of it %d times:\n%s", n, ann.err.String())
	}
}
