package host

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestATimeToLiveIsOfOneDatagramAlone(t *testing.T) {
	for _, family := range []struct {
		network, addr          string
		level, receive, option int
	}{
		{"udp4", "127.0.0.1", unix.SOL_IP, unix.IP_RECVTTL, unix.IP_TTL},
		{"udp6", "::1", unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_HOPLIMIT},
	} {
		t.Run(family.network, func(t *testing.T) {
			at := &net.UDPAddr{IP: net.ParseIP(family.addr)}
			receiver, err := net.ListenUDP(family.network, at)
			if err != nil {
				t.Skipf("no socket on %s: %v", family.addr, err)
			}
			defer receiver.Close()
			sender, err := net.ListenUDP(family.network, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer sender.Close()
			raw, err := receiver.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), family.level, family.receive, 1)
			})
			if err != nil {
				t.Fatal(err)
			}
			to := receiver.LocalAddr().(*net.UDPAddr).AddrPort()
			hops := func() int {
				t.Helper()
				receiver.SetReadDeadline(time.Now().Add(10 * time.Second))
				b, oob := make([]byte, 10), make([]byte, 100)
				n, oobn, _, from, err := receiver.ReadMsgUDPAddrPort(b, oob)
				if err != nil || string(b[:n]) != "hello" || from.Port() != sender.LocalAddr().(*net.UDPAddr).AddrPort().Port() {
					t.Fatalf("%q from %v: %v", b[:n], from, err)
				}
				messages, err := unix.ParseSocketControlMessage(oob[:oobn])
				if err != nil || len(messages) != 1 || int(messages[0].Header.Type) != family.option {
					t.Fatalf("%v, %v", messages, err)
				}
				return int(binary.NativeEndian.Uint32(messages[0].Data))
			}
			send := func(ttl uint8) {
				t.Helper()
				if err := WriteUDPTTL(sender, []byte("hello"), netip.AddrPortFrom(to.Addr(), to.Port()), ttl); err != nil {
					t.Fatal(err)
				}
			}
			sender.WriteToUDPAddrPort([]byte("hello"), to)
			usual := hops()
			for _, ttl := range []uint8{1, 3, 255} {
				send(ttl)
				if got := hops(); got != int(ttl) {
					t.Errorf("sent with %d, arrived with %d", ttl, got)
				}
				sender.WriteToUDPAddrPort([]byte("hello"), to)
				if got := hops(); got != usual {
					t.Errorf("the next, sent plainly, arrived with %d, not %d", got, usual)
				}
			}
			if a := testing.AllocsPerRun(100, func() { WriteUDPTTL(sender, []byte("hello"), to, 2) }); a != 0 {
				t.Errorf("sending allocates %v times", a)
			}
		})
	}
}
