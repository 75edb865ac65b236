package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// nginxConf is a reverse proxy in front of the server. What it does with upgrades is up to the map.
const nginxConf = `daemon off;
pid %[1]s/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	map $http_upgrade $passed { %[3]s }
	map $passed $weft_connection { default upgrade; '' close; }
	server {
		listen 80;
		location / {
			proxy_pass https://%[2]s;
			proxy_http_version 1.1;
			proxy_set_header Upgrade $passed;
			proxy_set_header Connection $weft_connection;
		}
	}
}
`

func TestNodesJoinAndTalkThroughARealNginx(t *testing.T) {
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Skip("nginx is not installed")
	}
	for _, c := range []struct {
		name, passes, transport string
	}{
		{"that passes every upgrade", "default $http_upgrade;", "upgrade"},
		{"that passes WebSocket only", "default ''; websocket websocket;", "websocket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newNet(t)
			proxy := w.must(w.net.AddHost("proxy"))
			w.serve("--url", "http://"+proxy.Addr().String())
			dir := filepath.Join(w.net.Dir(), "nginx")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			conf := filepath.Join(dir, "nginx.conf")
			text := fmt.Sprintf(nginxConf, dir, w.server.Host.Addr(), c.passes)
			if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := proxy.Start(proxy.Command(w.ctx, "nginx", "-p", dir, "-c", conf)); err != nil {
				t.Fatal(err)
			}
			_, hostA := w.home("ann", netns.Symmetric)
			_, hostB := w.home("bob", netns.Symmetric)
			a, b := w.node(hostA), w.node(hostB)
			if s := w.up(a); s.Server.Transport != c.transport {
				t.Errorf("ann is connected by %s", s.Server.Transport)
			}
			addrB := w.up(b).Self.Addrs[0]
			w.reaches(a, "bob", weft.RelayStream)
			talk := w.converse(a.Host, b.Host, addrB)
			talk.goesOn(t, 50)
			if p, err := a.Peer(w.ctx, "bob"); err != nil || p.Path != weft.PathRelay {
				t.Errorf("bob is reached by %s (%v)", p.Method, err)
			}
		})
	}
}

func TestIPv6IsTheWayWhereNATsLeaveNoneByIPv4(t *testing.T) {
	w := newNet(t)
	w.serve()
	home := func(name string) *netns.Host {
		r, err := w.net.AddRouter("gw-"+name, netns.Symmetric, netns.WithIPv6())
		if err != nil {
			t.Fatal(err)
		}
		return w.must(r.AddHost(name, netns.WithIPv6()))
	}
	a, b := w.node(home("ann")), w.node(home("bob"))
	w.up(a)
	addrs := w.up(b).Self.Addrs
	w.run(a.Host, "ping", "-c", "2", "-W", "5", addrs[0].String())
	p := w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	if at, err := netip.ParseAddrPort(p.Endpoint); err != nil || !at.Addr().Is6() {
		t.Errorf("bob is reached at %s", p.Endpoint)
	}
	w.run(a.Host, "ping", "-c", "2", "-W", "5", addrs[1].String()) // and IPv6 inside IPv6
}

func TestNodesWithoutRootServeAndFetchThroughTheProxy(t *testing.T) {
	w := newNet(t)
	w.serve()
	_, hostA := w.home("ann", netns.PortRestrictedCone)
	_, hostB := w.home("bob", netns.PortRestrictedCone)
	t.Setenv("WEFT_PROXY_PASSWORD", "") // a random one
	a := w.node(hostA, "--userspace", "--proxy", "127.0.0.1:1055")
	b := w.node(hostB, "--userspace", "--proxy", "127.0.0.1:1055")
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]

	// Bob's page is served by a program on bob's loopback, that knows nothing of weft.
	const page = "bob's page\n"
	l, err := b.Host.Listen(netip.MustParseAddrPort("127.0.0.1:8080"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, page) })}
	go srv.Serve(l)
	defer srv.Close()

	password, err := os.ReadFile(filepath.Join(a.State, "proxy-password"))
	if err != nil {
		t.Fatal(err)
	}
	user := "weft:" + strings.TrimSpace(string(password))
	w.reaches(a, "bob", weft.Direct)
	for _, scheme := range []string{"socks5h", "http"} {
		for _, host := range []string{"bob.weft.internal", addrB.String()} {
			got := w.run(a.Host, "curl", "-sS", "--max-time", "20", "--proxy", scheme+"://127.0.0.1:1055", "--proxy-user", user,
				"http://"+net.JoinHostPort(host, "8080")+"/")
			if got != page {
				t.Errorf("by %s from %s: %q", scheme, host, got)
			}
		}
		if out, err := a.Host.Run(w.ctx, "curl", "-sS", "--max-time", "5", "--fail", "--proxy", scheme+"://127.0.0.1:1055", "--proxy-user", "weft:wrong",
			"http://bob.weft.internal:8080/"); err == nil {
			t.Errorf("by %s with a wrong password: %q", scheme, out)
		}
	}
	if s, err := a.Status(w.ctx); err != nil || s.Self.Interface != "" || !s.Self.Userspace || s.Self.Proxy == "" {
		t.Errorf("status is %+v (%v)", s.Self, err)
	}
}

// rekeyAfter is WireGuard's REKEY_AFTER_TIME and what it takes to notice that it is over.
const rekeyAfter = 120*time.Second + 15*time.Second

func TestTunnelsRekeyWhileTheServerIsDown(t *testing.T) {
	if testing.Short() {
		t.Skip("takes WireGuard's two minutes")
	}
	t.Parallel()
	w := newWorld(t)
	_, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 20)
	if err := w.server.Process.Kill(); err != nil {
		t.Log(err)
	}
	var before weft.PeerStatus
	if err := netns.WaitFor(w.ctx, "the first handshake to be seen", func() (err error) {
		if before, err = a.Peer(w.ctx, "bob"); err == nil && before.LastHandshake.IsZero() {
			err = errors.New("there is none")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for {
		p, err := a.Peer(w.ctx, "bob")
		if err != nil {
			t.Fatal(err)
		}
		if p.LastHandshake.After(before.LastHandshake.Add(time.Minute)) {
			break
		}
		if time.Since(began) > rekeyAfter {
			t.Fatalf("no new handshake %v after the last", time.Since(before.LastHandshake))
		}
		if silence := talk.goesOn(t, 100); silence > 3*time.Second {
			t.Errorf("the connection was silent for %v", silence)
		}
	}
	talk.goesOn(t, 50)
}
