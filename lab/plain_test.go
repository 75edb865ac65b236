package lab

import (
	"context"
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

	"github.com/miekg/dns"

	"weft"
	"weft/lab/netns"
)

// A phone is a machine with Debian's WireGuard tools and no weft.
type phone struct {
	w     *world
	host  *netns.Host
	addrs []netip.Addr
	env   []string
	conf  string
}

// newPhone has the server make a configuration, and brings it up with wg-quick on a host behind a symmetric NAT.
func (w *world) newPhone(gateway string) *phone {
	w.t.Helper()
	for _, program := range []string{"wg", "wg-quick", "wireguard-go"} {
		if _, err := exec.LookPath(program); err != nil {
			w.t.Skipf("%s is not installed (scripts/install-deps test)", program)
		}
	}
	_, h := w.home("phone", netns.Symmetric)
	if err := h.SetResolvConf("nameserver 192.0.2.53\n"); err != nil {
		w.t.Fatal(err)
	}
	conf, err := w.server.Admin(w.ctx, "node", "create", "--wireguard", "--name", "phone", "--via", gateway)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	p := &phone{w: w, host: h, conf: filepath.Join(dir, w.nic("wp")+".conf")}
	if err := os.WriteFile(p.conf, []byte(conf+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(conf) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "Address = "); ok {
			for _, a := range strings.Split(list, ", ") {
				p.addrs = append(p.addrs, netip.MustParsePrefix(a).Addr())
			}
		}
	}
	p.up()
	return p
}

// up has wg-quick set the interface up, and take it down at the end.
func (p *phone) up() {
	p.w.t.Helper()
	dir := p.w.t.TempDir()
	// What resolvconf(8) does with one interface: what comes on its standard input is how names are resolved.
	if err := os.WriteFile(filepath.Join(dir, "resolvconf"), []byte("#!/bin/sh\nif [ \"$1\" = -a ]; then cat >/etc/resolv.conf; fi\n"), 0o755); err != nil {
		p.w.t.Fatal(err)
	}
	p.env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	p.w.t.Cleanup(func() {
		cmd := p.command(context.Background(), "wg-quick", "down", p.conf)
		if out, err := cmd.CombinedOutput(); err != nil {
			p.w.t.Errorf("wg-quick down: %v: %s", err, out)
		}
	})
	cmd := p.command(p.w.ctx, "wg-quick", "up", p.conf)
	// Its background process, wireguard-go, keeps what it inherits open: to a file, and not to a pipe that is waited for.
	log, err := os.Create(filepath.Join(dir, "up.log"))
	if err != nil {
		p.w.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		p.w.t.Fatalf("wg-quick up: %v: %s", err, said)
	}
}

func (p *phone) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := p.host.Command(ctx, name, args...)
	cmd.Env = append(cmd.Env, p.env...)
	return cmd
}

// nic makes the name of an interface that is there once on this machine: WireGuard's tools know them by sockets in one
// directory, whatever the namespace.
func (w *world) nic(prefix string) string { return fmt.Sprintf("%s%d", prefix, os.Getpid()%1_000_000) }

// serves has a host answer HTTP requests to an overlay address with its own name, when it has read them whole.
func (w *world) serves(h *netns.Host, addr netip.Addr) {
	w.t.Helper()
	l, err := h.Listen(netip.AddrPortFrom(addr, 80))
	if err != nil {
		w.t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(out, "this is "+h.Name)
	})}
	go srv.Serve(l)
	w.t.Cleanup(func() { srv.Close() })
}

// resolves gives a host a name server, which is on the server's host and knows every name.
func (w *world) resolves(h *netns.Host) *netns.Host {
	w.t.Helper()
	conn, err := w.server.Host.ListenUDP(netip.AddrPortFrom(w.server.Host.Addr(), 53))
	if err != nil {
		w.t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(out dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 80)}}
		}
		out.WriteMsg(m)
	})}
	go srv.ActivateAndServe()
	w.t.Cleanup(func() { srv.Shutdown() })
	if err := h.SetResolvConf("nameserver " + w.server.Host.Addr().String() + "\n"); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// eventually waits for a command to succeed.
func (w *world) eventually(what string, h *netns.Host, name string, args ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	var out string
	if err := netns.WaitFor(ctx, what, func() (err error) {
		out, err = h.Run(ctx, name, args...)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestAPhoneWithPlainWireGuardIsAMember(t *testing.T) {
	w := newWorld(t)
	gw := w.node(w.resolves(w.must(w.net.AddHost("gw"))), "--tun", w.nic("wg"))
	_, hostC := w.home("carl", netns.PortRestrictedCone)
	carl := w.node(hostC)
	addrGW := w.up(gw).Self.Addrs[0]
	selfC := w.up(carl).Self
	p := w.newPhone("gw")
	w.serves(hostC, selfC.Addrs[0])
	w.serves(p.host, p.addrs[0])

	// It reaches its gateway, and by way of it another node: by address, both families, and by name.
	w.eventually("the phone to reach its gateway", p.host, "ping", "-c", "1", "-W", "2", addrGW.String())
	w.eventually("the phone to reach carl", p.host, "ping", "-c", "1", "-W", "2", selfC.Addrs[0].String())
	w.run(p.host, "ping", "-c", "3", "-i", "0.2", "-W", "5", selfC.Addrs[1].String())
	if got := w.eventually("the phone to fetch carl's page", p.host, "curl", "-4", "-sS", "--max-time", "5", "http://carl.weft.internal/"); got != "this is carl" {
		t.Errorf("carl's page reads %q", got)
	}
	if got := w.run(p.host, "getent", "ahostsv6", "carl"); !strings.Contains(got, selfC.Addrs[1].String()) {
		t.Errorf("in the search domain carl is %q", got)
	}
	// What is not the overlay's, the gateway asks whom its machine asks.
	if got := w.run(p.host, "getent", "ahostsv4", "www.example.org"); !strings.Contains(got, "192.0.2.80") {
		t.Errorf("www.example.org is %q", got)
	}
	// And it is reached.
	w.run(hostC, "ping", "-c", "3", "-i", "0.2", "-W", "5", p.addrs[0].String())
	w.run(hostC, "ping", "-c", "3", "-i", "0.2", "-W", "5", p.addrs[1].String())
	if got := w.run(hostC, "curl", "-4", "-sS", "--max-time", "20", "http://phone.weft.internal/"); got != "this is phone" {
		t.Errorf("the phone's page reads %q", got)
	}
	w.run(gw.Host, "ping", "-c", "1", "-W", "5", p.addrs[0].String())
	// Large packets fit: some MiB by TCP.
	w.run(p.host, "curl", "-4", "-sS", "--max-time", "20", "-X", "POST", "--data-binary", "@"+w.fleet.Binary, "-o", "/dev/null", "http://carl.weft.internal/")

	online := func(n *Node, path weft.PathKind) weft.PeerStatus {
		t.Helper()
		var s weft.PeerStatus
		if err := netns.WaitFor(w.ctx, n.Name+" to know the phone as online", func() (err error) {
			if s, err = n.Peer(w.ctx, "phone"); err == nil && !s.Online {
				err = fmt.Errorf("it is %+v", s)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if s.Gateway != "gw" || s.Path != path {
			t.Errorf("%s has the phone as %+v", n.Name, s)
		}
		return s
	}
	s := online(gw, weft.PathDirect)
	if s.LastHandshake.IsZero() || s.RxBytes < 1<<20 || s.TxBytes == 0 || !strings.Contains(s.Endpoint, ":") {
		t.Errorf("its gateway has it as %+v", s)
	}
	if by, err := carl.Peer(w.ctx, "gw"); err != nil {
		t.Error(err)
	} else {
		online(carl, by.Path)
	}
	if list, err := w.server.Admin(w.ctx, "node", "list"); err != nil || !strings.Contains(list, "wireguard by gw") {
		t.Errorf("%v: %s", err, list)
	}
	if _, err := carl.Ping(w.ctx, "phone", 0); err == nil || !strings.Contains(err.Error(), "gw") {
		t.Errorf("weft ping says %v", err)
	}

	// WireGuard's tools look at the gateway's interface, and may add what the network does not have.
	show := w.run(gw.Host, "wg", "show", w.nic("wg"))
	for _, want := range []string{"listening port: ", "allowed ips: " + p.addrs[0].String() + "/32", "endpoint: " + s.Endpoint, "latest handshake: ", "MiB received"} {
		if !strings.Contains(show, want) {
			t.Errorf("wg shows\n%swithout %q", show, want)
		}
	}
	key := strings.Fields(show[strings.Index(show, "peer: "):])[1]
	if out, err := gw.Host.Run(w.ctx, "wg", "set", w.nic("wg"), "peer", key, "remove"); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("wg removes a member: %v %s", err, out)
	}

	// It ends where its membership ends, and goes on where that does.
	if _, err := w.server.Admin(w.ctx, "node", "expire", "phone"); err != nil {
		t.Fatal(err)
	}
	if err := netns.WaitFor(w.ctx, "the phone to be out", func() error {
		if _, err := p.host.Run(w.ctx, "ping", "-c", "1", "-W", "1", selfC.Addrs[0].String()); err == nil {
			return fmt.Errorf("it still reaches carl")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := w.server.Admin(w.ctx, "node", "expire", "phone", "--never"); err != nil {
		t.Fatal(err)
	}
	w.eventually("the phone to be in again", p.host, "ping", "-c", "1", "-W", "2", selfC.Addrs[0].String())
	if _, err := w.server.Admin(w.ctx, "node", "remove", "phone"); err != nil {
		t.Fatal(err)
	}
	if err := netns.WaitFor(w.ctx, "the gateway to forget the phone", func() error {
		if show := w.run(gw.Host, "wg", "show", w.nic("wg"), "allowed-ips"); strings.Contains(show, p.addrs[0].String()) {
			return fmt.Errorf("it has %s", show)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if rules := w.run(gw.Host, "ip", "rule", "list"); strings.Contains(rules, w.nic("wg")) {
		t.Errorf("nobody is behind it any more, and there are rules for what comes in:\n%s", rules)
	}
	if err := gw.Process.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join("/var/run/wireguard", w.nic("wg")+".sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestAGatewayWithoutAnInterfaceForwardsAsWell(t *testing.T) {
	w := newWorld(t)
	gw := w.node(w.resolves(w.must(w.net.AddHost("gw"))), "--userspace", "--proxy", "127.0.0.1:1055")
	_, hostC := w.home("carl", netns.PortRestrictedCone)
	carl := w.node(hostC)
	w.up(gw)
	selfC := w.up(carl).Self
	p := w.newPhone("gw")
	w.serves(hostC, selfC.Addrs[0])
	w.serves(p.host, p.addrs[0])
	if got := w.eventually("the phone to look a name up", p.host, "getent", "ahostsv4", "www.example.org"); !strings.Contains(got, "192.0.2.80") {
		t.Errorf("www.example.org is %q", got)
	}
	for _, a := range selfC.Addrs {
		w.eventually("the phone to reach carl", p.host, "ping", "-c", "1", "-W", "2", a.String())
	}
	for _, a := range p.addrs {
		w.run(hostC, "ping", "-c", "3", "-i", "0.2", "-W", "5", a.String())
	}
	if got := w.run(p.host, "curl", "-4", "-sS", "--max-time", "20", "-X", "POST", "--data-binary", "@"+w.fleet.Binary, "http://carl.weft.internal/"); got != "this is carl" {
		t.Errorf("carl's page reads %q", got)
	}
	if got := w.run(hostC, "curl", "-4", "-sS", "--max-time", "20", "-X", "POST", "--data-binary", "@"+w.fleet.Binary, "http://phone.weft.internal/"); got != "this is phone" {
		t.Errorf("the phone's page reads %q", got)
	}
}

// TestARouterIsAddedByHand has a peer that no server knows: its keys, and one that both know, are set with wg alone.
func TestARouterIsAddedByHand(t *testing.T) {
	w := newWorld(t)
	for _, program := range []string{"wg", "wg-quick", "wireguard-go"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (scripts/install-deps test)", program)
		}
	}
	gw := w.node(w.must(w.net.AddHost("gw")), "--tun", w.nic("wg"))
	self := w.up(gw).Self
	_, h := w.home("router", netns.PortRestrictedCone)
	wg := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(w.ctx, "wg", args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("wg %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	private, psk := wg("", "genkey"), wg("", "genpsk")
	public := wg(private, "pubkey")
	dir := t.TempDir()
	shared := filepath.Join(dir, "psk")
	gateway := strings.Fields(w.run(gw.Host, "wg", "show", w.nic("wg"), "public-key"))[0]
	p := &phone{w: w, host: h, conf: filepath.Join(dir, w.nic("wr")+".conf")}
	conf := fmt.Sprintf("[Interface]\nPrivateKey = %s\nAddress = 10.77.0.2/32\n[Peer]\nPublicKey = %s\nPresharedKey = %s\nEndpoint = %s:%d\nAllowedIPs = 100.64.0.0/10\nPersistentKeepalive = 1\n",
		private, gateway, psk, gw.Host.Addr(), self.Port)
	for file, text := range map[string]string{p.conf: conf, shared: psk} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.up()

	w.run(gw.Host, "wg", "set", w.nic("wg"), "peer", public, "preshared-key", shared, "allowed-ips", "10.77.0.2/32")
	w.run(gw.Host, "ip", "route", "add", "10.77.0.0/24", "dev", w.nic("wg"))
	w.eventually("the router to be reached", gw.Host, "ping", "-c", "1", "-W", "1", "10.77.0.2")
	w.run(h, "ping", "-c", "3", "-i", "0.2", "-W", "5", self.Addrs[0].String())
	if show := w.run(gw.Host, "wg", "showconf", w.nic("wg")); !strings.Contains(show, "PublicKey = "+public+"\nPresharedKey = "+psk+"\nAllowedIPs = 10.77.0.2/32\nEndpoint = ") {
		t.Errorf("wg showconf says\n%s", show)
	}
	// Another shared key, and nothing comes through; the right one again, and it does; none of it without the peer.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte(wg("", "genpsk")), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run(gw.Host, "wg", "set", w.nic("wg"), "peer", public, "preshared-key", other)
	if out, err := gw.Host.Run(w.ctx, "ping", "-c", "2", "-i", "0.2", "-W", "2", "10.77.0.2"); err == nil {
		t.Errorf("with a shared key that is not shared: %s", out)
	}
	w.run(gw.Host, "wg", "set", w.nic("wg"), "peer", public, "preshared-key", shared)
	w.eventually("the router to be reached again", gw.Host, "ping", "-c", "1", "-W", "1", "10.77.0.2")
	w.run(gw.Host, "wg", "set", w.nic("wg"), "peer", public, "remove")
	if out, err := gw.Host.Run(w.ctx, "ping", "-c", "2", "-i", "0.2", "-W", "2", "10.77.0.2"); err == nil {
		t.Errorf("without the peer: %s", out)
	}
	if s, err := gw.Status(w.ctx); err != nil || len(s.Problems) > 0 {
		t.Errorf("the gateway's problems are %v, %v", s.Problems, err)
	}
}
