package netstack

import (
	"io"
	"net/netip"
	"testing"
	"time"
)

func TestPacketsForOthersArePassedOnOnlyWhereThatIsWanted(t *testing.T) {
	dev, n := newStack(t, addrA4)
	other := netip.MustParseAddr("100.64.0.9")
	passed := func() bool {
		t.Helper()
		dev.Queues()[0].Write(bare(icmpEcho(addrB4, other)))
		dev.Queues()[0].Write(bare(icmpEcho(addrB4, addrA4))) // its answer comes behind what is passed on
		p := one(t, dev)
		if netip.AddrFrom4([4]byte(p[16:])) != other {
			return false
		}
		if p[8] != 63 || p[20] != 8 || netip.AddrFrom4([4]byte(p[12:])) != addrB4 {
			t.Errorf("passed on is %x", p)
		}
		one(t, dev)
		return true
	}
	if passed() {
		t.Error("at first it forwards")
	}
	for _, on := range []bool{true, false, true} {
		if err := n.SetForwarding(on); err != nil {
			t.Fatal(err)
		}
		if passed() != on {
			t.Errorf("forwarding is %v, and it does otherwise", on)
		}
	}
}

func TestAServiceIsAnsweredAtItsAddressAndNothingBeginsThere(t *testing.T) {
	a, b := wired(t)
	service := netip.MustParseAddr("100.64.0.99")
	for range 2 { // that it is there already is no matter
		if err := b.AddService(service); err != nil {
			t.Fatal(err)
		}
	}
	udp, tcp, err := b.Bind(netip.AddrPortFrom(service, 53))
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	defer tcp.Close()
	go func() {
		buf := make([]byte, 64)
		for {
			k, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			udp.WriteTo(buf[:k], from)
		}
	}()
	go func() {
		if c, err := tcp.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	for _, network := range []string{"udp", "tcp"} {
		c, err := dial(t, a, network, service, 53)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, "question")
		buf := make([]byte, 8)
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "question" {
			t.Errorf("by %s: %q, %v", network, buf, err)
		}
	}
	if _, _, err := b.Bind(netip.AddrPortFrom(service, 53)); err == nil {
		t.Error("the port is taken twice")
	}

	dev, n := newStack(t, addrA4)
	if err := n.AddService(service); err != nil {
		t.Fatal(err)
	}
	c, err := dial(t, n, "udp", addrB4, 7)
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("x"))
	if p := one(t, dev); netip.AddrFrom4([4]byte(p[12:])) != addrA4 {
		t.Errorf("a datagram comes from %v", netip.AddrFrom4([4]byte(p[12:])))
	}
}
