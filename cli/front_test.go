package cli

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft/key"
	"weft/relay"
	"weft/stun"
)

// aFront opens a front on loopback, with certificate.
func aFront(t *testing.T, udp string) *front {
	t.Helper()
	f, err := listenFront("127.0.0.1:0", udp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	if err := f.certify(t.TempDir(), "https://127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTheSecondUDPPortIsTheNextOneOrAnyOtherAndTheSameOfBothFamilies(t *testing.T) {
	var first, blocker *net.UDPConn
	for range 50 { // until two ports in a row are free
		c, err := net.ListenUDP("udp", &net.UDPAddr{})
		if err != nil {
			t.Fatal(err)
		}
		port := c.LocalAddr().(*net.UDPAddr).Port
		if blocker, err = net.ListenUDP("udp", &net.UDPAddr{Port: port + 1}); err == nil {
			first = c
			break
		}
		c.Close()
	}
	if first == nil {
		t.Skip("no two free UDP ports in a row")
	}
	at := first.LocalAddr().(*net.UDPAddr).AddrPort()
	first.Close()
	addr := netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port()).String()
	addr = strings.TrimPrefix(addr, "[::]")

	taken := aFront(t, addr)
	if got := taken.alternatePort(); got == 0 || got == at.Port()+1 {
		t.Errorf("with %d taken, the second port is %d", at.Port()+1, got)
	}
	for _, p := range taken.udp {
		if p.Alternate == nil || uint16(p.Alternate.LocalAddr().(*net.UDPAddr).Port) != taken.alternatePort() {
			t.Errorf("not both families have the second port %d", taken.alternatePort())
		}
	}
	var log bytes.Buffer
	taken.tell(slog.New(slog.NewTextHandler(&log, nil)), "weft relay", "https://r", addr, "1")
	if !strings.Contains(log.String(), "in use by another program") {
		t.Errorf("the log says %s", &log)
	}
	taken.close()
	blocker.Close()

	free := aFront(t, addr)
	if got := free.alternatePort(); got != at.Port()+1 {
		t.Errorf("with %d free, the second port is %d", at.Port()+1, got)
	}
	log.Reset()
	free.tell(slog.New(slog.NewTextHandler(&log, nil)), "weft relay", "https://r", addr, "1")
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("it says %d lines: %s", n, &log)
	}
}

func TestBothUDPPortsAnswerSTUNAndEachForTheOther(t *testing.T) {
	f := aFront(t, "127.0.0.1:0")
	rel, err := relay.New(relay.Config{Key: key.NewPrivate[key.Relay](), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.serve(ctx, http.NotFoundHandler(), rel, slog.New(slog.DiscardHandler)) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	main := f.udp[0].Main[0].LocalAddr().(*net.UDPAddr).AddrPort()
	alternate := netip.AddrPortFrom(main.Addr(), f.alternatePort())
	const changeIP, changePort = 4, 2
	for _, x := range []struct {
		to     netip.AddrPort
		change byte
		from   netip.AddrPort
		class  stun.Class
	}{
		{main, 0, main, stun.ClassSuccess},
		{alternate, 0, alternate, stun.ClassSuccess},
		{main, changePort, alternate, stun.ClassSuccess},
		{alternate, changePort, main, stun.ClassSuccess},
		{main, changeIP, main, stun.ClassError}, // one address has no other
	} {
		req := append([]byte{0, 1, 0, 8, 0x21, 0x12, 0xA4, 0x42}, "twelve bytes"...)
		req = append(req, 0, 3, 0, 4, 0, 0, 0, x.change) // CHANGE-REQUEST, RFC 5780 section 7.2
		if x.change == 0 {
			req, req[3] = req[:20], 0
		}
		if _, err := c.WriteToUDPAddrPort(req, x.to); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2048)
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if m, errParse := stun.Parse(buf[:n]); err != nil || errParse != nil || from != x.from || m.Class != x.class {
			t.Errorf("%+v: %x from %s, %v, %v", x, buf[:n], from, err, errParse)
		}
	}
}
