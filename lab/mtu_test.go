package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft"
	"weft/lab/netns"
)

// bulk is how much a transfer carries, in bytes: some thousand full packets.
const bulk = 8 << 20

// transfer sends bulk bytes over a new TCP connection from one host to another, and returns the size of the segments that
// the sender made at the end, without options.
func (w *world) transfer(from, to *netns.Host, addr netip.Addr) (mss int) {
	w.t.Helper()
	l, err := to.Listen(netip.AddrPortFrom(addr, 0))
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), bulk/16)
	came := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			came <- err
			return
		}
		defer c.Close()
		got, err := io.ReadAll(c)
		if err == nil && !bytes.Equal(got, sent) {
			err = fmt.Errorf("%d bytes came, of %d, or others", len(got), len(sent))
		}
		came <- err
	}()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	tcp := c.(*net.TCPConn)
	tcp.SetDeadline(time.Now().Add(patience))
	if _, err := tcp.Write(sent); err != nil {
		w.t.Fatal(err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) { mss, optErr = unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_MAXSEG) })
	if err := errors.Join(err, optErr, tcp.CloseWrite()); err != nil {
		w.t.Fatal(err)
	}
	select {
	case err := <-came:
		if err != nil {
			w.t.Fatal(err)
		}
	case <-ctx.Done():
		w.t.Fatal("the transfer did not end")
	}
	return mss + 12 // the option that nearly every segment has: timestamps
}

// pieces counts the fragments that a host got.
func (w *world) pieces(h *netns.Host) (n int) {
	w.t.Helper()
	lines := strings.Split(w.run(h, "cat", "/proc/net/snmp"), "\n")
	for i, name := range strings.Fields(lines[0]) {
		if name == "ReasmReqds" {
			fmt.Sscan(strings.Fields(lines[1])[i], &n)
			return n
		}
	}
	w.t.Fatal("the kernel counts no fragments")
	return 0
}

// carries waits until a node says how long packets to a peer may be.
func (w *world) carries(n *Node, peer string, mtu int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if err := netns.WaitFor(ctx, fmt.Sprintf("%s to send packets of %d bytes to %s", n.Name, mtu, peer), func() error {
		p, err := n.Peer(ctx, peer)
		if err == nil && (p.MTU != mtu || p.Method != weft.Direct) {
			err = fmt.Errorf("it sends %d by %s", p.MTU, p.Method)
		}
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
}

// A home whose uplink is narrower than an Ethernet: by PPPoE, a tunnel, a mobile network. Its router tells those who send
// too much, or says nothing, as many do.
func TestANarrowUplinkCarriesFullPackets(t *testing.T) {
	for _, c := range []struct {
		name   string
		bytes  int
		silent bool
		want   int // of the overlay: less IPv4 (20), UDP (8) and WireGuard (32), in units of 16
	}{
		{"1390, which the router tells", 1390, false, 1328},
		{"1390, in silence", 1390, true, 1328},
		{"1280, in silence", 1280, true, 1216},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			gw, hostA := w.home("ann", netns.PortRestrictedCone)
			_, hostB := w.home("bob", netns.PortRestrictedCone)
			for _, h := range []*netns.Host{hostA, hostB} { // veth lets bundles pass that are too long for it
				w.run(h, "ip", "link", "set", "eth0", "gso_max_segs", "1")
			}
			w.run(gw.Host, "ip", "link", "set", "wan", "mtu", fmt.Sprint(c.bytes))
			if c.silent { // such routers help TCP alone, and weft's stream to the server is TCP
				w.run(gw.Host, "nft", "add table inet silence; add chain inet silence through { type filter hook forward priority 0; }; "+
					fmt.Sprintf("add rule inet silence through tcp flags syn tcp option maxseg size set %d", c.bytes-40))
				w.run(gw.Host, "nft", "add chain inet silence out { type filter hook output priority 0; }; "+
					"add rule inet silence out icmp type destination-unreachable icmp code frag-needed drop")
			}
			a, b := w.node(hostA), w.node(hostB)
			addrA, addrB := w.up(a).Self.Addrs[0], w.up(b).Self.Addrs[0]
			// At once, by whatever way there is, and while that changes.
			w.transfer(hostA, hostB, addrB)
			w.transfer(hostB, hostA, addrA)
			w.reaches(a, "bob", weft.Direct)
			w.reaches(b, "ann", weft.Direct)
			w.transfer(hostA, hostB, addrB)
			w.transfer(hostB, hostA, addrA)
			w.carries(a, "bob", c.want)
			w.carries(b, "ann", c.want)
			before := w.pieces(hostA) + w.pieces(hostB) + w.pieces(gw.Host)
			for range 2 {
				if got := w.transfer(hostA, hostB, addrB); got != c.want-40 {
					t.Errorf("segments of %d bytes leave by the narrow uplink, want %d", got, c.want-40)
				}
				if got := w.transfer(hostB, hostA, addrA); got != c.want-40 {
					t.Errorf("segments of %d bytes come by the narrow uplink, want %d", got, c.want-40)
				}
			}
			if n := w.pieces(hostA) + w.pieces(hostB) + w.pieces(gw.Host) - before; n > 0 {
				t.Errorf("%d fragments of packets that should fit", n)
			}
			// What is longer than fits and must not be fragmented is answered as by a router.
			out, err := hostA.Run(w.ctx, "ping", "-M", "do", "-s", fmt.Sprint(1400-28), "-c", "2", "-i", "0.2", "-W", "1", addrB.String())
			if err == nil || !strings.Contains(out+err.Error(), fmt.Sprintf("mtu = %d", c.want)) && !strings.Contains(out+err.Error(), fmt.Sprintf("mtu=%d", c.want)) {
				t.Errorf("ping said %s, %v", out, err)
			}
			if out, err := hostA.Run(w.ctx, "ping", "-M", "dont", "-s", fmt.Sprint(1400-28), "-c", "2", "-i", "0.2", "-W", "2", addrB.String()); err != nil {
				t.Errorf("a long packet that may be fragmented: %s, %v", out, err)
			}
		})
	}
}

func TestJumboFramesCarryJumboPackets(t *testing.T) {
	w := newWorld(t)
	gwA, hostA := w.home("ann", netns.PortRestrictedCone)
	gwB, hostB := w.home("bob", netns.PortRestrictedCone)
	for _, n := range []*netns.Network{w.net.Public(), gwA.Inside(), gwB.Inside()} {
		if err := n.SetMTU(9000); err != nil {
			t.Fatal(err)
		}
	}
	a, b := w.node(hostA), w.node(hostB, "--mtu", "8904")
	addrA, addrB := w.up(a).Self.Addrs[0], w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.Direct)
	w.carries(b, "ann", 1408) // ann's packets, and so what she takes of bob's, are of an Ethernet
	s, err := a.Settings(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.MTU = 8904
	if err := a.SetSettings(w.ctx, s); err != nil {
		t.Fatal(err)
	}
	w.up(a)
	w.carries(a, "bob", 8904)
	w.carries(b, "ann", 8904)
	before := w.pieces(hostA) + w.pieces(hostB)
	if got := w.transfer(hostA, hostB, addrB); got != 8904-40 {
		t.Errorf("segments of %d bytes", got)
	}
	if got := w.transfer(hostB, hostA, addrA); got != 8904-40 {
		t.Errorf("segments of %d bytes", got)
	}
	// One segment on the way becomes an Ethernet.
	if err := w.net.Public().SetMTU(1500); err != nil {
		t.Fatal(err)
	}
	w.carries(a, "bob", 1440)
	if n := w.pieces(hostA) + w.pieces(hostB) - before; n > 0 {
		t.Logf("%d fragments while the path was measured anew", n)
	}
	if got := w.transfer(hostA, hostB, addrB); got != 1440-40 {
		t.Errorf("segments of %d bytes, and 1440 fit", got+40)
	}
}
