package stun

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	pion "github.com/pion/stun/v3"
)

// serveOn runs a responder on sockets of the loopback until the test ends.
func serveOn(t *testing.T, r *Responder, conns ...net.PacketConn) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, r, conns...) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		for _, c := range conns {
			c.Close()
		}
	})
}

// listen opens a socket, or skips the test where the loopback has no such address.
func listen(t *testing.T, addr netip.AddrPort) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("udp", addr.String())
	if err != nil {
		t.Skipf("this machine has no %v to listen on: %v", addr, err)
	}
	return c
}

// oneAddress is a responder with one socket.
func oneAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	c := listen(t, ap("127.0.0.1:0"))
	serveOn(t, &Responder{Software: "weft"}, c)
	return addrPort(c.LocalAddr())
}

// fourSockets is a responder on 127.0.0.1 and 127.0.0.2 with two ports each.
func fourSockets(t *testing.T) Alternates {
	t.Helper()
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	for range 20 { // the ports that are free on one may be taken on the other
		a, b := listen(t, netip.AddrPortFrom(one, 0)), listen(t, netip.AddrPortFrom(one, 0))
		p, q := addrPort(a.LocalAddr()).Port(), addrPort(b.LocalAddr()).Port()
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(two, p).String())
		if err == nil {
			var d net.PacketConn
			if d, err = net.ListenPacket("udp", netip.AddrPortFrom(two, q).String()); err == nil {
				r := &Responder{Software: "weft", IPv4: Alternates{netip.AddrPortFrom(one, p), netip.AddrPortFrom(two, q)}}
				serveOn(t, r, a, b, c, d)
				return r.IPv4
			}
			c.Close()
		}
		a.Close()
		b.Close()
	}
	t.Skip("this machine has no second loopback address 127.0.0.2 to listen on")
	return Alternates{}
}

// wantFromProgram runs one of the foreign clients, which must print all the
// words, and returns what it printed. They choose local ports by themselves,
// taken ones too, and wait for a busy machine only briefly: they get three tries.
func wantFromProgram(t *testing.T, words []string, debianPackage, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian package %s)", name, debianPackage)
	}
	var out []byte
	var missing []string
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		out, err = exec.CommandContext(ctx, path, args...).CombinedOutput()
		cancel()
		missing = nil
		for _, w := range words {
			if !strings.Contains(string(out), w) {
				missing = append(missing, w)
			}
		}
		if missing == nil {
			return string(out)
		}
	}
	t.Fatalf("%s %q (%v) did not print %q but:\n%s", name, args, err, missing, out)
	return ""
}

func port(a netip.AddrPort) string { return strconv.Itoa(int(a.Port())) }

func TestDebiansStunFindsItsAddressAtAServerWithOneAddress(t *testing.T) {
	t.Parallel()
	s := oneAddress(t)
	wantFromProgram(t, []string{"ok=1", "mappedAddr=127.0.0.1:", "SourceAddress = " + s.String()},
		"stun-client", "stun", s.String(), "1", "-v")
}

func TestDebiansStunIsNotToldThatAServerWithOneAddressChangedIt(t *testing.T) {
	t.Parallel()
	wantFromProgram(t, []string{"test I = 1", "test II = 0", "test III = 0"},
		"stun-client", "stun", oneAddress(t).String(), "-v")
}

func TestDebiansStunFindsTheOpenInternetAtAServerWithTwoAddresses(t *testing.T) {
	t.Parallel()
	a := fourSockets(t)
	wantFromProgram(t, []string{"test I = 1", "test II = 1", "test III = 1", "test I(2) = 1", "mapped IP same = 1",
		"Primary: Open", "ChangedAddress = " + a.Alternate.String()},
		"stun-client", "stun", a.Primary.String(), "-v")
}

func TestCoturnsClientFindsItsAddress(t *testing.T) {
	t.Parallel()
	out := wantFromProgram(t, []string{"UDP reflexive addr: 127.0.0.1:"},
		"coturn", "turnutils_stunclient", "-p", port(oneAddress(t)), "127.0.0.1")
	if strings.Contains(out, "RFC 5780") {
		t.Errorf("a server with one address passed for one with two:\n%s", out)
	}
}

func TestCoturnsClientIsRefusedWhatOneAddressCannotDo(t *testing.T) {
	t.Parallel()
	wantFromProgram(t, []string{"error 420 (Unknown Attribute)"},
		"coturn", "turnutils_stunclient", "-f", "-p", port(oneAddress(t)), "127.0.0.1")
}

func TestCoturnsClientGetsTheChangesItAsksForFromTwoAddresses(t *testing.T) {
	t.Parallel()
	a := fourSockets(t)
	wantFromProgram(t, []string{"RFC 5780 response 3", "Response origin: : " + a.Alternate.String(), "Other addr: : " + a.Alternate.String()},
		"coturn", "turnutils_stunclient", "-p", port(a.Primary), "127.0.0.1")
}

func TestCoturnsNATDiscoveryUnderstandsOurAnswers(t *testing.T) {
	t.Parallel()
	a := fourSockets(t)
	const independent, open = "NAT with Endpoint Independent Mapping!", "NAT with Endpoint Independent Filtering!"
	t.Run("group", func(t *testing.T) { // waits for its parallel children, and the server for it
		for name, tc := range map[string]struct{ args, words []string }{
			"mapping":   {[]string{"-m"}, []string{"No ALG: Mapped == XOR-Mapped", independent}},
			"filtering": {[]string{"-f"}, []string{open}},
			"padding":   {[]string{"-m", "-f", "-P"}, []string{independent, open}},
			"lifetime":  {[]string{"-t", "-T", "1"}, []string{"RFC 5780 response 2"}}, // RESPONSE-PORT
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				wantFromProgram(t, tc.words, "coturn", "turnutils_natdiscovery",
					append(tc.args, "-p", port(a.Primary), "-L", "127.0.0.1", "127.0.0.1")...)
			})
		}
	})
}

func TestPionsClientUnderstandsOurAnswer(t *testing.T) {
	s := oneAddress(t)
	conn, err := net.Dial("udp", s.String())
	if err != nil {
		t.Fatal(err)
	}
	client, err := pion.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	request := pion.MustBuild(pion.TransactionID, pion.BindingRequest, pion.NewSoftware("a client with a name"), pion.Fingerprint)
	err = client.Do(request, func(e pion.Event) {
		if e.Error != nil {
			t.Errorf("no answer: %v", e.Error)
			return
		}
		var mapped pion.XORMappedAddress
		var origin pion.ResponseOrigin
		var software pion.Software
		if err := errors.Join(mapped.GetFrom(e.Message), origin.GetFrom(e.Message),
			software.GetFrom(e.Message), pion.Fingerprint.Check(e.Message)); err != nil {
			t.Errorf("can't be read: %v", err)
		}
		if mapped.String() != conn.LocalAddr().String() || origin.String() != s.String() || software.String() != "weft" {
			t.Errorf("mapped %v, origin %v, software %v", mapped, origin, software)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pionServer answers one request after the other with what build makes of it.
func pionServer(t *testing.T, build func(req *pion.Message, from *net.UDPAddr) []pion.Setter) netip.AddrPort {
	t.Helper()
	c := listen(t, ap("127.0.0.1:0"))
	ended := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-ended })
	go func() {
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			req := &pion.Message{Raw: buf[:n]}
			if err := req.Decode(); err != nil {
				t.Errorf("pion can't read our request: %v", err)
				continue
			}
			res := pion.MustBuild(append([]pion.Setter{req}, build(req, from.(*net.UDPAddr))...)...)
			c.WriteTo(res.Raw, from)
		}
	}()
	return addrPort(c.LocalAddr())
}

// transact runs one transaction on a socket of the loopback and returns the
// answer and the socket's address.
func transact(t *testing.T, server netip.AddrPort, cfg TransactionConfig) (Result, netip.AddrPort) {
	t.Helper()
	c := listen(t, ap("127.0.0.1:0"))
	defer c.Close()
	tx := NewTransaction(time.Now(), server, cfg)
	buf := make([]byte, 2048)
	for {
		pkt, next, done := tx.Poll(time.Now())
		if done {
			t.Fatalf("no answer: %v", tx.Err())
		}
		if pkt != nil {
			if _, err := c.WriteTo(pkt, net.UDPAddrFromAddrPort(server)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		c.SetReadDeadline(next)
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			continue
		}
		if r, ok := tx.Handle(time.Now(), buf[:n], addrPort(from)); ok {
			return r, addrPort(c.LocalAddr())
		}
	}
}

func TestOurClientUnderstandsPionsAnswer(t *testing.T) {
	s := pionServer(t, func(req *pion.Message, from *net.UDPAddr) []pion.Setter {
		if err := pion.Fingerprint.Check(req); err != nil {
			t.Errorf("our FINGERPRINT: %v", err)
		}
		var software pion.Software
		if err := software.GetFrom(req); err != nil || software.String() != "weft 1" {
			t.Errorf("our SOFTWARE: %q, %v", software, err)
		}
		return []pion.Setter{
			pion.BindingSuccess, pion.NewSoftware("pion"),
			&pion.XORMappedAddress{IP: from.IP, Port: from.Port},
			&pion.OtherAddress{IP: net.IPv4(192, 0, 2, 9), Port: 3479},
			pion.NewShortTermIntegrity("not our business"), pion.Fingerprint,
		}
	})
	r, local := transact(t, s, TransactionConfig{Request: Request{Software: "weft 1", Fingerprint: true}})
	if r.Mapped != local || r.Other != ap("192.0.2.9:3479") || r.From != s {
		t.Errorf("%+v", r)
	}
}

func TestOurClientUnderstandsPionsRefusal(t *testing.T) {
	s := pionServer(t, func(*pion.Message, *net.UDPAddr) []pion.Setter {
		return []pion.Setter{pion.BindingError, pion.CodeUnknownAttribute, pion.UnknownAttributes{pion.AttrChangeRequest}, pion.Fingerprint}
	})
	r, _ := transact(t, s, TransactionConfig{Request: Request{Change: ChangePort}})
	if r.Code != 420 || r.Reason != "Unknown Attribute" {
		t.Errorf("%+v", r)
	}
}

func TestPionAgreesOnIntegrity(t *testing.T) {
	theirs := pion.MustBuild(pion.TransactionID, pion.BindingRequest, pion.NewUsername("u"), pion.NewRealm("r"),
		pion.NewLongTermIntegrity("u", "r", "p"), pion.Fingerprint)
	m := mustParse(t, theirs.Raw)
	if !m.VerifyIntegrity(LongTermKey("u", "r", "p")) {
		t.Error("we reject theirs")
	}
	ours := &pion.Message{Raw: AppendFingerprint(AppendIntegrity(AppendBindingRequest(nil, testID, Request{Software: "weft"}), []byte("secret")))}
	if err := errors.Join(ours.Decode(), pion.Fingerprint.Check(ours), pion.NewShortTermIntegrity("secret").Check(ours)); err != nil {
		t.Errorf("they reject ours: %v", err)
	}
}
