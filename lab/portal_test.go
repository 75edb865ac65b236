package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/node"
)

// A portal: a home with two uplinks and a client behind it, a host with one interface whose address the client has, and a
// stranger somewhere on the Internet.

// portalWorld is that, and the nodes are up.
type portalWorld struct {
	*world
	vps, home        *netns.Host
	remote, local    *Node
	routers          map[string]*netns.Router
	client, stranger *netns.Host
}

func newPortalWorld(t *testing.T) *portalWorld {
	w := newWorld(t)
	p := &portalWorld{world: w}
	p.home, p.routers = w.twoUplinks()
	p.vps = w.must(w.net.AddHost("vps", netns.WithIPv6()))
	p.stranger = w.must(w.net.AddHost("stranger", netns.WithIPv6()))
	p.client = w.must(w.net.AddHost("client")) // whose own leg is not used
	w.run(p.home, "ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", p.client.Namespace())
	w.run(p.home, "ip", "link", "set", "lan0", "up")
	w.run(p.client, "ip", "link", "set", "eth0", "down")
	w.run(p.client, "ip", "link", "set", "lan0", "up")
	for _, h := range []*netns.Host{p.home, p.vps, p.client} { // as strict as systems come
		for _, name := range []string{"all", "default", "eth0", "lan0", "eth1"} {
			_ = h.Do(func() error {
				return os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "rp_filter"), []byte("1"), 0)
			})
		}
	}
	for _, name := range []string{"eth0", "eth1"} { // a machine with two uplinks and a strict filter has no answers by the second
		if err := p.home.Do(func() error {
			return os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "rp_filter"), []byte("2"), 0)
		}); err != nil {
			t.Fatal(err)
		}
	}
	p.remote, p.local = w.node(p.vps), w.node(p.home)
	w.up(p.remote)
	w.up(p.local)
	w.reaches(p.remote, p.local.Name, weft.Direct)
	w.reaches(p.local, p.remote.Name, weft.Direct)
	return p
}

// open opens the portal.
func (p *portalWorld) open(remote, local []string) {
	p.t.Helper()
	p.weft(p.remote, append([]string{"portal", "remote", p.local.Name}, remote...)...)
	p.weft(p.local, append([]string{"portal", "local", p.remote.Name, "--client", "lan0"}, local...)...)
}

func (p *portalWorld) weft(n *Node, args ...string) string {
	p.t.Helper()
	return p.run(n.Host, p.fleet.Binary, append(args, "--socket", n.Socket)...)
}

// address gives the client by hand what it is told to have.
func (p *portalWorld) address() {
	p.t.Helper()
	s, err := p.local.PortalStatus(p.ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	for i, a := range s.Addrs {
		args := []string{"addr", "add", a.String(), "dev", "lan0"}
		if a.Addr().Is6() {
			args = append(args, "nodad")
		}
		p.run(p.client, "ip", args...)
		p.run(p.client, "ip", "route", "add", "default", "via", s.Gateways[i].String(), "dev", "lan0")
	}
}

// echoes has a host answer every TCP connection to a port with its name and the address that it came from.
func (p *portalWorld) echoes(h *netns.Host, port uint16) {
	p.t.Helper()
	l, err := h.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s %s", h.Name, netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().Unmap())
			}()
		}
	}()
}

// asks connects and returns what is answered.
func (p *portalWorld) asks(from *netns.Host, to netip.Addr, port uint16, local string) (string, error) {
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	var conn net.Conn
	err := from.Do(func() (err error) {
		d := net.Dialer{}
		if local != "" {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local))
		}
		conn, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(to, port).String())
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	b, err := io.ReadAll(conn)
	return string(b), err
}

// hears fails the test unless a connection is answered so.
func (p *portalWorld) hears(from *netns.Host, to netip.Addr, port uint16, want string) {
	p.t.Helper()
	if got, err := p.asks(from, to, port, ""); err != nil || got != want {
		p.t.Errorf("%s asked %v port %d and heard %q (%v), not %q", from.Name, to, port, got, err, want)
	}
}

func TestAClientOwnsThePublicAddressOfAMachineElsewhere(t *testing.T) {
	p := newPortalWorld(t)
	address, address6, stranger, stranger6 := p.vps.Addr(), p.vps.Addr6(), p.stranger.Addr(), p.stranger.Addr6()
	p.echoes(p.vps, 22)
	p.echoes(p.vps, 80)
	p.echoes(p.stranger, 80)
	p.open([]string{"--keep", "tcp:8022"}, nil)
	p.address()
	p.echoes(p.client, 80)
	p.echoes(p.client, 22)
	p.echoes(p.vps, 8022)

	// Inbound and outbound, in both families, TCP, UDP and ICMP.
	p.hears(p.stranger, address, 80, "client "+stranger.String())
	p.hears(p.stranger, address6, 80, "client "+stranger6.String())
	p.hears(p.client, stranger, 80, "stranger "+address.String())
	p.hears(p.client, stranger6, 80, "stranger "+address6.String())
	for _, to := range []netip.Addr{stranger, stranger6} {
		p.run(p.client, "ping", "-c", "2", "-i", "0.2", "-W", "5", to.String())
	}
	for _, to := range []netip.Addr{address, address6} {
		p.run(p.stranger, "ping", "-c", "2", "-i", "0.2", "-W", "5", to.String())
	}
	p.datagram(p.stranger, p.client, address, address)
	p.datagram(p.client, p.stranger, stranger, stranger)
	p.datagram(p.stranger, p.client, address6, address6)

	// What the machine keeps is its own, and so are the answers to what it begins, from the very port that the client uses, too.
	p.hears(p.stranger, address, 22, "vps "+stranger.String())
	p.hears(p.stranger, address, 8022, "vps "+stranger.String())
	p.hears(p.vps, stranger, 80, "stranger "+address.String())
	p.hears(p.vps, stranger6, 80, "stranger "+address6.String())
	p.run(p.vps, "ping", "-c", "1", "-W", "5", stranger.String())
	both := netip.AddrPortFrom(address, 40000).String()
	for _, h := range []*netns.Host{p.client, p.vps} {
		if got, err := p.asks(h, stranger, 80, both); err != nil || got != "stranger "+address.String() {
			t.Errorf("%s asked from port 40000 and heard %q (%v)", h.Name, got, err)
		}
	}
	if _, err := p.asks(p.stranger, address, 81, ""); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port that the client does not serve is said to be %v, not refused", err)
	}
	p.longest(p.client, stranger)
	p.longest(p.stranger, address)

	// Strangers pass nothing on, and the client does not get into the overlay.
	p.run(p.stranger, "ip", "route", "add", "192.168.0.0/16", "via", address.String())
	p.run(p.stranger, "ip", "route", "add", "100.64.0.0/10", "via", address.String())
	mine, err := p.local.Status(p.ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.silent(p.stranger, mine.Self.Addrs[0])
	p.silent(p.stranger, p.home.Addr())
	p.silent(p.client, mine.Self.Addrs[0])
	p.silent(p.client, netip.MustParseAddr("169.254.169.254"))

	s, err := p.remote.PortalStatus(p.ctx)
	if err != nil || !s.Open || s.Traffic.ToClient.Packets == 0 || s.Traffic.FromClient.Packets == 0 || s.Traffic.Kept.Packets == 0 || s.Heard.IsZero() {
		t.Errorf("the remote end says %+v (%v)", s, err)
	}

	// Taken down, and put up again by a new start after a kill.
	p.weft(p.remote, "portal", "off")
	p.hears(p.stranger, address, 80, "vps "+stranger.String())
	p.weft(p.remote, "portal", "remote", p.local.Name)
	p.hearsAgain(p.stranger, address, 80, "client "+stranger.String())
	p.remote.Process.Kill()
	p.waits("the machine's own service to be there again", func() error {
		got, err := p.asks(p.stranger, address, 80, "")
		if err == nil && got != "vps "+stranger.String() {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
	if err := p.remote.Start(p.ctx, ""); err != nil {
		t.Fatal(err)
	}
	p.up(p.remote)
	p.hearsAgain(p.stranger, address, 80, "client "+stranger.String())
	p.hears(p.stranger, address, 22, "vps "+stranger.String())
	p.remote.Process.Stop()
	for _, family := range []string{"-4", "-6"} {
		if out := p.run(p.vps, "ip", family, "rule"); !strings.HasPrefix(out, "0:	from all lookup local") || strings.Contains(out, "fwmark 0x20000000") {
			t.Errorf("the machine's rules after its end are\n%s", out)
		}
	}
	if out := p.run(p.vps, "nft", "list", "ruleset"); strings.Contains(out, "weft") {
		t.Errorf("the machine's nftables after its end are\n%s", out)
	}
}

func (p *portalWorld) hearsAgain(from *netns.Host, to netip.Addr, port uint16, want string) {
	p.t.Helper()
	p.waits(want, func() error {
		got, err := p.asks(from, to, port, "")
		if err == nil && got != want {
			err = fmt.Errorf("%s hears %q", from.Name, got)
		}
		return err
	})
}

// datagram sends one of UDP and back.
func (p *portalWorld) datagram(from, to *netns.Host, addr, own netip.Addr) {
	p.t.Helper()
	const port = 7000
	server, err := to.ListenUDP(netip.AddrPortFrom(own, port))
	if err != nil {
		p.t.Fatal(err)
	}
	defer server.Close()
	conn, err := from.DialContext(p.ctx, "udp", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 100)
	for range 3 { // datagrams are lost on a busy machine
		fmt.Fprint(conn, "question")
		server.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, back, err := server.ReadFromUDPAddrPort(b)
		if err != nil || string(b[:n]) != "question" {
			continue
		}
		server.WriteToUDPAddrPort([]byte("answer"), back)
		conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		if n, err := conn.Read(b); err == nil && string(b[:n]) == "answer" {
			return
		}
	}
	p.t.Errorf("no datagram goes from %s to %v and back", from.Name, addr)
}

// longest finds out that who sends packets that are too long for the overlay is told how long they may be.
func (p *portalWorld) longest(from *netns.Host, to netip.Addr) {
	p.t.Helper()
	var out string
	p.waits("the length that fits to be told", func() error {
		cmd := from.Command(p.ctx, "ping", "-M", "do", "-s", "1472", "-c", "2", "-i", "0.2", "-W", "2", to.String())
		b, _ := cmd.CombinedOutput()
		if out = string(b); !strings.Contains(out, "mtu") && !strings.Contains(out, "too long") {
			return fmt.Errorf("ping says\n%s", out)
		}
		return nil
	})
}

// silent fails the test if an echo is answered.
func (p *portalWorld) silent(from *netns.Host, to netip.Addr) {
	p.t.Helper()
	cmd := from.Command(p.ctx, "ping", "-c", "2", "-i", "0.2", "-W", "1", to.String())
	if out, err := cmd.CombinedOutput(); err == nil {
		p.t.Errorf("%s reaches %v:\n%s", from.Name, to, out)
	}
}

func TestADownloadThroughAPortalGoesOnWhenAnUplinkFails(t *testing.T) {
	p := newPortalWorld(t)
	p.open(nil, nil)
	p.address()
	p.worksBy(p.local, p.remote.Name, "eth0")
	p.worksBy(p.local, p.remote.Name, "eth1")
	p.run(p.client, "ping", "-c", "2", "-i", "0.2", "-W", "5", p.stranger.Addr().String())

	l, err := p.stranger.Listen(netip.AddrPortFrom(p.stranger.Addr(), 80))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for b := make([]byte, 1000); ; { // a pace that leaves the machine to others
			if _, err := c.Write(b); err != nil {
				return
			}
			<-time.After(2 * time.Millisecond)
		}
	}()
	conn, err := p.client.DialContext(p.ctx, "tcp", netip.AddrPortFrom(p.stranger.Addr(), 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var got atomic.Int64
	var silence atomic.Int64
	go func() {
		b := make([]byte, 64<<10)
		for last := time.Now(); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			now := time.Now()
			silence.Store(max(silence.Load(), int64(now.Sub(last))))
			got.Add(int64(n))
			last = now
		}
	}()
	more := func(what string) {
		t.Helper()
		aim := got.Load() + 200_000
		p.waits(what, func() error {
			if n := got.Load(); n < aim {
				return fmt.Errorf("%d of %d bytes have come", n, aim)
			}
			return nil
		})
	}
	more("the download to begin")
	for _, link := range []string{"eth0", "eth1"} {
		silence.Store(0)
		if err := p.routers[link].SetUp(false); err != nil {
			t.Fatal(err)
		}
		more("the download to go on without " + link)
		t.Logf("without %s the longest silence of one TCP connection was %v", link, time.Duration(silence.Load()))
		if s := time.Duration(silence.Load()); s > 4*missedWithin {
			t.Errorf("the download stood still for %v", s)
		}
		if err := p.routers[link].SetUp(true); err != nil {
			t.Fatal(err)
		}
		p.worksBy(p.local, p.remote.Name, link)
	}
}

func TestAPortalIsNobodysUnlessBothEndsSaySo(t *testing.T) {
	p := newPortalWorld(t)
	_, err := p.local.Portal(p.ctx, node.PortalRequest{Role: node.PortalLocal, Peer: p.remote.Name, Interface: "lan0"})
	if weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(err.Error(), "weft portal remote "+p.local.Name) {
		t.Errorf("a local end whose other end is none is told %v", err)
	}
	s, err := p.local.PortalStatus(p.ctx)
	if err != nil || s.Open {
		t.Errorf("it is %+v (%v)", s, err)
	}
	// It opens by itself when the other end agrees, and closes when that does no more.
	p.weft(p.remote, "portal", "remote", p.local.Name)
	state := func(open bool) {
		t.Helper()
		p.waits(fmt.Sprintf("open to be %v", open), func() error {
			s, err := p.local.PortalStatus(p.ctx)
			if err == nil && s.Open != open {
				err = fmt.Errorf("it is %+v", s)
			}
			return err
		})
	}
	state(true)
	p.weft(p.remote, "portal", "off")
	state(false)
	if out := p.run(p.home, "nft", "list", "ruleset"); strings.Contains(out, "weft-portal") {
		t.Errorf("what is closed leaves\n%s", out)
	}
}

// udhcpcScript has busybox's DHCP client set what it is told.
const udhcpcScript = `#!/bin/sh
if [ "$1" = bound ]; then ip addr replace $ip/$mask dev $interface && ip route replace default via $router dev $interface; fi
`

func TestClientsOfAPortalAreToldTheirAddressByDHCP(t *testing.T) {
	if out, err := exec.Command("busybox", "--list").Output(); err != nil || !strings.Contains(string(out), "udhcpc\n") {
		t.Skip("needs busybox with udhcpc, a DHCP client of somebody else's")
	}
	p := newPortalWorld(t)
	script := filepath.Join(p.fleet.Dir, "udhcpc.sh")
	if err := os.WriteFile(script, []byte(udhcpcScript), 0o755); err != nil {
		t.Fatal(err)
	}
	p.echoes(p.stranger, 80)
	for _, share := range [][]string{nil, {"--share", "192.168.77.1/24"}} {
		p.open(nil, append([]string{"--dhcp"}, share...))
		p.run(p.client, "ip", "addr", "flush", "dev", "lan0")
		p.run(p.client, "busybox", "udhcpc", "-i", "lan0", "-n", "-q", "-f", "-t", "5", "-T", "2", "-s", script)
		p.hears(p.client, p.stranger.Addr(), 80, "stranger "+p.vps.Addr().String())
		if s, err := p.local.PortalStatus(p.ctx); err != nil || len(s.Leases) != 1 || s.Leases[0].Addr != p.vps.Addr() && share == nil {
			t.Errorf("it says %+v (%v)", s, err)
		}
	}
}

// dhcpcdConfig has dhcpcd ask for an address by DHCPv6, and leave routers to the kernel.
const dhcpcdConfig = `ipv6only
noipv6rs
nohook resolv.conf
interface lan0
ia_na 1
`

func TestTheKernelOfAPortalsClientFindsItsWayInIPv6(t *testing.T) {
	if _, err := exec.LookPath("dhcpcd"); err != nil {
		t.Skip("needs dhcpcd, a DHCPv6 client of somebody else's: apt-get install dhcpcd-base")
	}
	p := newPortalWorld(t)
	config := filepath.Join(p.fleet.Dir, "dhcpcd.conf")
	if err := os.WriteFile(config, []byte(dhcpcdConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"accept_ra": "1", "router_solicitations": "3", "forwarding": "0"} {
		if err := p.client.Do(func() error {
			return os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf/lan0", name), []byte(value), 0)
		}); err != nil {
			t.Fatal(err)
		}
	}
	p.echoes(p.stranger, 80)
	p.echoes(p.client, 80)
	p.open(nil, []string{"--dhcp", "--dns", "2001:db8::53"})

	// The router and the length of packets are the kernel's own to find.
	routes := func() string { return p.run(p.client, "ip", "-6", "route", "show", "default") }
	p.waits("the client's kernel to know the router", func() error {
		if out := routes(); !strings.Contains(out, "via fe80::1 dev lan0 proto ra") || !strings.Contains(out, " mtu 1") {
			return fmt.Errorf("its routes are %q", out)
		}
		return nil
	})
	// The address is asked for, and is exactly the one of the machine elsewhere.
	p.run(p.client, "unshare", "--mount", "sh", "-c", "mkdir -p /run/dhcpcd && mount -t tmpfs none /run/dhcpcd && mount -t tmpfs none /var/lib/dhcpcd && "+
		"exec dhcpcd --config "+config+" --oneshot --timeout 20 lan0") // with no lease of earlier
	if out := p.run(p.client, "ip", "-6", "addr", "show", "dev", "lan0", "scope", "global"); !strings.Contains(out, p.vps.Addr6().String()+"/128") || strings.Count(out, "inet6") != 1 {
		t.Errorf("the client's addresses are\n%s", out)
	}
	p.hears(p.client, p.stranger.Addr6(), 80, "stranger "+p.vps.Addr6().String())
	p.hears(p.stranger, p.vps.Addr6(), 80, "client "+p.stranger.Addr6().String())
	s, err := p.local.PortalStatus(p.ctx)
	if err != nil || len(s.Leases) != 1 || s.Leases[0].Addr != p.vps.Addr6() {
		t.Errorf("it says %+v (%v)", s, err)
	}
	// Neighbours are asked again whether they are there, and are told by who is a router that it is one.
	p.run(p.client, "ip", "-6", "neigh", "flush", "dev", "lan0")
	p.hears(p.client, p.stranger.Addr6(), 80, "stranger "+p.vps.Addr6().String())
	if out := routes(); !strings.Contains(out, "via fe80::1") {
		t.Errorf("with the neighbour found again the client's routes are %q", out)
	}

	p.weft(p.local, "portal", "off")
	p.waits("the client's kernel to know no router", func() error {
		if out := routes(); out != "" {
			return fmt.Errorf("its routes are %q", out)
		}
		return nil
	})
}
