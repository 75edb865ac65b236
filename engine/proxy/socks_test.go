package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// socks talks to the proxy up to the request and returns the answer's code and address.
func socks(t *testing.T, p *Proxy, command byte, to []byte) (net.Conn, reply, netip.AddrPort) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "\x05\x01\x02\x01\x04%s%c%s", User, len(p.Password()), p.Password())
	c.Write(append([]byte{5, command, 0}, to...))
	head := make([]byte, 4+3)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatalf("after %x: %v", head, err)
	}
	if string(head[:4]) != "\x05\x02\x01\x00" || head[4] != 5 || head[6] != 0 {
		t.Fatalf("the answer begins %x", head)
	}
	bound, err := readTarget(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, reply(head[5]), netip.MustParseAddrPort(net.JoinHostPort(bound.host, fmt.Sprint(bound.port)))
}

func TestACommandOrAddressTypeThatIsNoneIsRefusedByName(t *testing.T) {
	p := listen(t, &overlay{}, nil)
	if _, r, _ := socks(t, p, 2, appendAddr(nil, netip.AddrPortFrom(webAddr, 80))); r != replyNoCommand {
		t.Errorf("BIND: %d", r)
	}
	if _, r, _ := socks(t, p, commandConnect, []byte{9, 1, 2, 3}); r != replyNoAddressType {
		t.Errorf("address type 9: %d", r)
	}
}

func TestDatagramsGoThroughAnAssociationAndEndWithIt(t *testing.T) {
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var intruded atomic.Bool
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			if string(b[:n]) == "intruder" {
				intruded.Store(true)
			}
			server.WriteTo(bytes.ToUpper(b[:n]), from)
		}
	}()
	port := server.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	o := &overlay{}
	p := listen(t, o, nil)
	control, r, relay := socks(t, p, commandAssociate, appendAddr(nil, netip.AddrPort{}))
	if r != replySucceeded {
		t.Fatalf("reply %d", r)
	}
	c, err := net.Dial("udp", relay.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	named := append([]byte{addressName, byte(len("web.weft.internal"))}, "web.weft.internal"...)
	named = binary.BigEndian.AppendUint16(named, port)
	for _, to := range [][]byte{named, appendAddr(nil, netip.AddrPortFrom(webAddr, port))} {
		c.Write(append(append([]byte{0, 0, 1}, to...), "fragment"...)) // dropped
		c.Write(append(append([]byte{0, 0, 0}, to...), "hello"...))
		c.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, 2048)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		from, payload, err := parseDatagram(b[:n])
		if err != nil || string(payload) != "HELLO" || from.port != port {
			t.Fatalf("got %q from %v, %v", payload, from, err)
		}
	}
	// Somebody else's datagrams are not the client's.
	before := o.dials.Load()
	other, err := net.Dial("udp", relay.String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.Write(append(append([]byte{0, 0, 0}, named...), "intruder"...))
	// More destinations than there are places, and the first still works.
	for i := range uint16(2 * maxDestinations) {
		c.Write(append(append([]byte{0, 0, 0}, appendAddr(nil, netip.AddrPortFrom(webAddr, 20000+i))...), "x"...))
	}
	deadline := time.Now().Add(patience)
	for answered := false; !answered; {
		if time.Now().After(deadline) {
			t.Fatal("no answer after many destinations")
		}
		c.Write(append(append([]byte{0, 0, 0}, named...), "again"...))
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		b := make([]byte, 2048)
		n, err := c.Read(b)
		answered = err == nil && bytes.HasSuffix(b[:n], []byte("AGAIN"))
	}
	if intruded.Load() { // it came before what has been answered
		t.Error("somebody else's datagram went through")
	}
	if n := o.dials.Load() - before; n < maxDestinations || n > 2*maxDestinations+10 {
		t.Errorf("%d destinations were dialled", n)
	}
	control.Close()
	ended := time.Now().Add(patience)
	for {
		c.Write([]byte{0})
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(make([]byte, 9)); errors.Is(err, syscall.ECONNREFUSED) {
			break // the socket is gone
		}
		if time.Now().After(ended) {
			t.Fatal("the association outlives its connection")
		}
	}
}
