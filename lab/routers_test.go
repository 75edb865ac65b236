package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/lab/netns"
)

// Networks behind routers, and machines that leave through another: the real thing, with the kernel's forwarding and nftables.

// lan puts a host that is on no other network behind routers: it is the .10 of a network of which they are .1, .2 ..., and its
// way out is the first. The network is the 142nd of 192.168 in IPv4 for the third number 142.
func (w *world) lan(name string, third int, routers ...*netns.Host) *netns.Host {
	w.t.Helper()
	h := w.must(w.net.AddHost(name))
	w.run(h, "ip", "link", "set", "eth0", "down")
	w.run(h, "ip", "link", "add", "net", "type", "bridge", "forward_delay", "0")
	w.run(h, "ip", "link", "set", "net", "up")
	w.run(h, "ip", "addr", "add", fmt.Sprintf("192.168.%d.10/24", third), "dev", "net")
	w.run(h, "ip", "addr", "add", fmt.Sprintf("2001:db8:%d::10/64", third), "dev", "net", "nodad")
	for i, r := range routers {
		link := fmt.Sprintf("net%d", third)
		port := fmt.Sprintf("port%d", i)
		w.run(h, "ip", "link", "add", port, "type", "veth", "peer", "name", link, "netns", r.Namespace())
		w.run(h, "ip", "link", "set", port, "master", "net", "up")
		w.run(r, "ip", "link", "set", link, "up")
		w.run(r, "ip", "addr", "add", fmt.Sprintf("192.168.%d.%d/24", third, i+1), "dev", link)
		w.run(r, "ip", "addr", "add", fmt.Sprintf("2001:db8:%d::%d/64", third, i+1), "dev", link, "nodad")
	}
	w.run(h, "ip", "route", "add", "default", "via", fmt.Sprintf("192.168.%d.1", third))
	w.run(h, "ip", "-6", "route", "add", "default", "via", fmt.Sprintf("2001:db8:%d::1", third))
	return h
}

// A mirror tells whoever asks from which address the question came.
type mirror struct {
	mu   sync.Mutex
	from map[string]bool
}

// mirrors has a host tell, at an address of its own, who asks.
func (w *world) mirrors(h *netns.Host, addr netip.Addr) *mirror {
	w.t.Helper()
	l, err := h.Listen(netip.AddrPortFrom(addr, 80))
	if err != nil {
		w.t.Fatal(err)
	}
	m := &mirror{from: map[string]bool{}}
	srv := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		m.mu.Lock()
		m.from[host] = true
		m.mu.Unlock()
		io.WriteString(out, host)
	})}
	go srv.Serve(l)
	w.t.Cleanup(func() { srv.Close() })
	return m
}

// seen are the addresses that asked since the last call.
func (m *mirror) seen() (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range m.from {
		list = append(list, a)
	}
	clear(m.from)
	return list
}

// ask asks a mirror from a host how it is seen.
func (w *world) ask(h *netns.Host, addr netip.Addr, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, within)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.DialContext}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(addr, 80).String()+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// seenAs waits until a mirror sees a host as it should.
func (w *world) seenAs(what string, h *netns.Host, addr netip.Addr, want string) {
	w.t.Helper()
	w.waits(what, func() error {
		got, err := w.ask(h, addr, 2*time.Second)
		if err == nil && got != want {
			err = fmt.Errorf("it is seen as %s, want %s", got, want)
		}
		return err
	})
}

// unreachable fails when a mirror can be asked.
func (w *world) unreachable(what string, h *netns.Host, addr netip.Addr) {
	w.t.Helper()
	if got, err := w.ask(h, addr, 700*time.Millisecond); err == nil {
		w.t.Errorf("%s: %s answered (it saw %s), want nothing", what, addr, got)
	}
}

// set has a node change settings.
func (w *world) set(n *Node, list ...string) {
	w.t.Helper()
	w.run(n.Host, w.fleet.Binary, append([]string{"--socket", n.Socket, "set"}, list...)...)
}

func (w *world) approve(node string, routes ...string) {
	w.t.Helper()
	if _, err := w.server.Admin(w.ctx, append([]string{"route", "approve", node}, routes...)...); err != nil {
		w.t.Fatal(err)
	}
}

// overlay is a node's own address of the overlay.
func (w *world) overlay(n *Node, six int) netip.Addr { return w.up(n).Self.Addrs[six] }

// TestRoadWarriorsReachTheOfficeAndTheOfficeOnlyAnswers is the source document's third topology: a machine somewhere, and the
// network of an office behind a router.
func TestRoadWarriorsReachTheOfficeAndTheOfficeOnlyAnswers(t *testing.T) {
	w := newWorld(t)
	hqHost := w.must(w.net.AddHost("hq"))
	w.run(hqHost, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
	printer := w.lan("printer", 142, hqHost)
	_, roadHost := w.home("road", netns.PortRestrictedCone)
	hq, road := w.node(hqHost), w.node(roadHost)
	w.up(hq)
	road4, road6 := w.overlay(road, 0), w.overlay(road, 1)
	four, six := netip.MustParseAddr("192.168.142.10"), netip.MustParseAddr("2001:db8:142::10")
	w.mirrors(printer, four)
	w.mirrors(printer, six)
	w.mirrors(roadHost, road4)

	w.set(hq, "advertise-routes=192.168.142.0/24,2001:db8:142::/64")
	w.waits("the server to hear of the networks", func() error {
		out, err := w.server.Admin(w.ctx, "route", "list")
		if err == nil && !strings.Contains(out, "waits for approval") {
			err = fmt.Errorf("it lists %q", out)
		}
		return err
	})
	w.unreachable("nobody has approved it", roadHost, four)
	w.approve("hq", "192.168.142.0/24", "2001:db8:142::/64")
	w.seenAs("the office to be reached", roadHost, four, "192.168.142.1")
	w.seenAs("the office to be reached by IPv6", roadHost, six, "2001:db8:142::1")

	w.set(hq, "snat=off")
	w.seenAs("the office to see who asks", roadHost, four, road4.String())
	w.seenAs("the office to see who asks by IPv6", roadHost, six, road6.String())
	w.unreachable("the office may not begin", printer, road4)
	w.set(hq, "site-to-site=on")
	w.seenAs("the office to begin", printer, road4, "192.168.142.10")
	w.set(road, "accept-routes=off")
	w.unreachable("routes are not accepted", roadHost, four)
	w.unreachable("what is not accepted is not let in", printer, road4)
	w.set(road, "accept-routes=on")

	// Killed, it leaves what the next start puts right; taken down, it leaves nothing.
	if err := hq.Process.Kill(); err != nil {
		t.Log(err)
	}
	if err := hq.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(hq)
	w.seenAs("the office to be reached again", roadHost, four, road4.String())
	if _, err := w.server.Admin(w.ctx, "route", "withdraw", "hq", "192.168.142.0/24"); err != nil {
		t.Fatal(err)
	}
	w.waits("the network to be gone", func() error {
		if got, err := w.ask(roadHost, four, 300*time.Millisecond); err == nil {
			return fmt.Errorf("it saw %s", got)
		}
		return nil
	})
	w.run(hqHost, w.fleet.Binary, "--socket", hq.Socket, "down")
	w.clean(hqHost)
	if out := strings.Fields(w.run(hqHost, "cat", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding")); out[0] != "0" || out[1] != "0" {
		w.t.Errorf("%s still forwards: %q", hqHost.Name, out)
	}
}

// clean fails where weft has left rules or routes in a host.
func (w *world) clean(h *netns.Host) {
	w.t.Helper()
	if out := w.run(h, "nft", "list", "tables"); strings.Contains(out, "weft") {
		w.t.Errorf("%s still has tables of nftables: %s", h.Name, out)
	}
	for _, family := range []string{"-4", "-6"} {
		if out := w.run(h, "ip", family, "rule", "list"); strings.Contains(out, "5190") {
			w.t.Errorf("%s still has rules: %s", h.Name, out)
		}
	}
}

// TestWithAnExitNodeNothingGoesPastIt has a machine leave through another, dies in the middle, and is lured by its network.
func TestWithAnExitNodeNothingGoesPastIt(t *testing.T) {
	w := newWorld(t)
	exitHost, webHost := w.must(w.net.AddHost("exit")), w.must(w.net.AddHost("web"))
	gw, roadHost := w.home("road", netns.PortRestrictedCone)
	exit, road := w.node(exitHost), w.node(roadHost)
	w.up(exit)
	w.up(road)
	web := w.mirrors(webHost, webHost.Addr())
	w.mirrors(gw.Host, gw.Inside().Gateway())
	w.seenAs("the web to be reached", roadHost, webHost.Addr(), gw.Addr().String())

	if out, err := roadHost.Run(w.ctx, w.fleet.Binary, "--socket", road.Socket, "set", "exit-node=exit"); err == nil {
		t.Errorf("an exit node that is none was taken: %s", out)
	}
	w.set(exit, "advertise-exit-node=on")
	w.approve("exit", "exit")
	w.waits("the exit node to be one", func() error {
		_, err := roadHost.Run(w.ctx, w.fleet.Binary, "--socket", road.Socket, "set", "exit-node=exit")
		return err
	})
	w.seenAs("the web to be reached through the exit", roadHost, webHost.Addr(), exitHost.Addr().String())
	web.seen()
	w.unreachable("the LAN is not for who leaves through an exit", roadHost, gw.Inside().Gateway())
	w.set(road, "exit-lan=on")
	w.seenAs("the LAN to be reached by choice", roadHost, gw.Inside().Gateway(), roadHost.Addr().String())
	w.set(road, "exit-lan=off")

	// CVE-2024-3661: the network hands out routes that are more specific than any default.
	for _, r := range []string{webHost.Addr().String() + "/32", "0.0.0.0/1", "128.0.0.0/1"} {
		w.run(roadHost, "ip", "route", "add", r, "via", gw.Inside().Gateway().String(), "dev", "eth0", "proto", "dhcp")
	}
	w.seenAs("the web to be reached through the exit all the same", roadHost, webHost.Addr(), exitHost.Addr().String())
	w.unreachable("not by a socket that is bound to the interface", roadHost, gw.Inside().Gateway())

	// The daemon dies; nothing leaves. It starts; it goes on.
	if err := road.Process.Kill(); err != nil {
		t.Log(err)
	}
	w.unreachable("the daemon is dead", roadHost, webHost.Addr())
	if err := road.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(road)
	w.seenAs("the web to be reached through the exit again", roadHost, webHost.Addr(), exitHost.Addr().String())

	// The exit dies; nothing leaves, and the machine says so.
	if err := exit.Process.Kill(); err != nil {
		t.Log(err)
	}
	w.unreachable("the exit is dead", roadHost, webHost.Addr())
	for _, a := range web.seen() {
		if a != exitHost.Addr().String() {
			t.Errorf("with an exit node the web saw %s", a)
		}
	}
	w.set(road, "exit-node=off")
	w.seenAs("the web to be reached past the exit, when told so", roadHost, webHost.Addr(), gw.Addr().String())
	w.run(roadHost, w.fleet.Binary, "--socket", road.Socket, "down")
	w.clean(roadHost)
}
