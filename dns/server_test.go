package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// start runs a server on loopback until the end of the test.
func start(t *testing.T, change func(*Config), tune ...func(*Server)) (*Server, netip.AddrPort) {
	t.Helper()
	cfg := Config{Zone: testZone(t), Listen: []netip.AddrPort{loopback}}
	if change != nil {
		change(&cfg)
	}
	var s *Server
	for tries := 1; ; tries++ {
		var err error
		if s, err = NewServer(cfg); err != nil {
			t.Fatal(err)
		}
		for _, f := range tune {
			f(s)
		}
		if err = s.Start(t.Context()); err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || tries == 20 { // the port that UDP was given may be somebody's of TCP
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s, s.Addrs()[0]
}

func query(name string, rrtype uint16) *miekg.Msg {
	return new(miekg.Msg).SetQuestion(name, rrtype)
}

// exchange asks a server as a client does.
func exchange(t *testing.T, network string, q *miekg.Msg, server netip.AddrPort) *miekg.Msg {
	t.Helper()
	c := miekg.Client{Net: network, Timeout: 10 * time.Second}
	r, _, err := c.ExchangeContext(t.Context(), q, server.String())
	if err != nil {
		t.Fatalf("ask %v by %s for %s: %v", server, network, q.Question[0].Name, err)
	}
	return r
}

func TestNodesAreFoundByUDPAndTCP(t *testing.T) {
	_, at := start(t, nil)
	for _, network := range []string{"udp", "tcp"} {
		for _, tc := range zoneAnswers {
			r := exchange(t, network, query(tc.name, tc.rrtype), at)
			if diff := cmp.Diff(tc.want, said(r)); diff != "" {
				t.Errorf("%s by %s (-want +got):\n%s", tc.why, network, diff)
			}
			if !r.Authoritative || !r.RecursionAvailable || !r.RecursionDesired {
				t.Errorf("%s by %s: flags of %v", tc.why, network, r.MsgHdr)
			}
		}
	}
}

func TestASocketOfAnotherStackServesAsWell(t *testing.T) {
	want := netip.MustParseAddrPort("100.64.0.1:53")
	_, at := start(t, func(c *Config) {
		c.Listen = []netip.AddrPort{want}
		c.Bind = func(at netip.AddrPort) (net.PacketConn, net.Listener, error) {
			if at != want {
				t.Errorf("asked to listen on %v", at)
			}
			udp, tcp, err := onePort()
			// Not a *net.UDPConn, as another stack's is none.
			return struct{ net.PacketConn }{udp}, tcp, err
		}
	})
	for _, network := range []string{"udp", "tcp"} {
		if got := said(exchange(t, network, query(zoneAnswers[0].name, zoneAnswers[0].rrtype), at)); cmp.Diff(zoneAnswers[0].want, got) != "" {
			t.Errorf("by %s: %v", network, got)
		}
	}
	s, err := NewServer(Config{Zone: testZone(t), Listen: []netip.AddrPort{want}, Bind: func(netip.AddrPort) (net.PacketConn, net.Listener, error) {
		return nil, nil, errors.New("no such address")
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "no such address") {
		t.Errorf("an address that cannot be had: %v", err)
	}
}

func TestWhatIsNoQuestionForUsIsRefused(t *testing.T) {
	_, at := start(t, nil)
	change := func(f func(*miekg.Msg)) *miekg.Msg {
		q := query("laptop.weft.internal.", miekg.TypeA)
		f(q)
		return q
	}
	for _, tc := range []struct {
		name string
		q    *miekg.Msg
		want int
	}{
		{"another class", change(func(q *miekg.Msg) { q.Question[0].Qclass = miekg.ClassCHAOS }), miekg.RcodeRefused},
		{"a zone transfer", query("weft.internal.", miekg.TypeAXFR), miekg.RcodeRefused},
		{"an update", change(func(q *miekg.Msg) { q.Opcode = miekg.OpcodeUpdate }), miekg.RcodeNotImplemented},
		{"a notification", change(func(q *miekg.Msg) { q.Opcode = miekg.OpcodeNotify }), miekg.RcodeNotImplemented},
		{"two questions", change(func(q *miekg.Msg) { q.Question = append(q.Question, q.Question[0]) }), miekg.RcodeFormatError},
		{"no question", change(func(q *miekg.Msg) { q.Question = nil }), miekg.RcodeFormatError},
		{"EDNS of a version to come", change(func(q *miekg.Msg) {
			q.SetEdns0(1232, false)
			q.IsEdns0().SetVersion(1)
		}), miekg.RcodeBadVers},
		{"no upstream", query("example.com.", miekg.TypeA), miekg.RcodeRefused},
	} {
		// By hand, for the client refuses some of these itself.
		for _, network := range []string{"udp", "tcp"} {
			c, err := miekg.DialTimeout(network, at.String(), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if err := c.WriteMsg(tc.q); err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			r, err := c.ReadMsg()
			if err != nil {
				t.Errorf("%s by %s: %v", tc.name, network, err)
			} else if r.Rcode != tc.want {
				t.Errorf("%s by %s: %s, want %s", tc.name, network, miekg.RcodeToString[r.Rcode], miekg.RcodeToString[tc.want])
			}
			c.Close()
		}
	}
}

func TestEDNSIsAnsweredWithEDNSAndOnlyThen(t *testing.T) {
	_, at := start(t, nil)
	q := query("laptop.weft.internal.", miekg.TypeA)
	if r := exchange(t, "udp", q, at); r.IsEdns0() != nil {
		t.Error("EDNS unasked")
	}
	q.SetEdns0(4096, true)
	r := exchange(t, "udp", q, at)
	opt := r.IsEdns0()
	if opt == nil || opt.UDPSize() != ednsSize || !opt.Do() || opt.Version() != 0 {
		t.Errorf("EDNS of the answer: %v", opt)
	}
}

func TestAnAnswerThatDoesNotFitIsCutAndComesWholeByTCP(t *testing.T) {
	var many []netip.Addr
	for i := range 200 {
		many = append(many, netip.AddrFrom4([4]byte{100, 64, 1, byte(i)}))
	}
	z, err := NewZone("weft.internal", []Record{{Name: "farm", Addrs: many}})
	if err != nil {
		t.Fatal(err)
	}
	s, at := start(t, nil)
	s.Replace(z, Split{})
	for _, tc := range []struct {
		network string
		size    uint16
		cut     bool
	}{{"udp", 0, true}, {"udp", 1232, true}, {"udp", 4096, false}, {"tcp", 0, false}} {
		q := query("farm.weft.internal.", miekg.TypeA)
		limit := miekg.MinMsgSize
		if tc.size != 0 {
			q.SetEdns0(tc.size, false)
			limit = int(tc.size)
		}
		r := exchange(t, tc.network, q, at)
		if r.Truncated != tc.cut || tc.cut != (len(r.Answer) < 200) {
			t.Errorf("%s with %d bytes: cut is %v, %d addresses", tc.network, tc.size, r.Truncated, len(r.Answer))
		}
		r.Compress = true
		if tc.network == "udp" && r.Len() > limit {
			t.Errorf("%d bytes where %d fit", r.Len(), limit)
		}
	}
}

func TestOnlyThisMachineMayAsk(t *testing.T) {
	var stranger atomic.Bool
	_, at := start(t, func(c *Config) { c.Allow = func(netip.Addr) bool { return !stranger.Load() } })
	exchange(t, "tcp", query("laptop.weft.internal.", miekg.TypeA), at)
	stranger.Store(true)
	if r := exchange(t, "udp", query("laptop.weft.internal.", miekg.TypeA), at); r.Rcode != miekg.RcodeRefused || len(r.Answer) > 0 {
		t.Errorf("a stranger was told %s", said(r))
	}
	c := miekg.Client{Net: "tcp", Timeout: 10 * time.Second}
	if r, _, err := c.ExchangeContext(t.Context(), query("laptop.weft.internal.", miekg.TypeA), at.String()); err == nil {
		t.Errorf("a stranger was told %s by TCP", said(r))
	}

	s, err := NewServer(Config{Zone: testZone(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.addrs.Store(&[]netip.AddrPort{netip.MustParseAddrPort("100.64.0.1:53")})
	for a, want := range map[string]bool{"127.0.0.1": true, "127.1.2.3": true, "::1": true, "100.64.0.1": true, "100.64.0.2": false, "192.0.2.1": false} {
		if got := s.allowed(netip.MustParseAddr(a)); got != want {
			t.Errorf("unless told otherwise %s may ask: %v, want %v", a, got, want)
		}
	}
}

func TestAChangeOfTheZoneNeverMakesAQuestionFail(t *testing.T) {
	s, at := start(t, nil)
	one, two := addrs("100.64.0.1"), addrs("100.64.0.2")
	zones := make([]*Zone, 2)
	for i, a := range [][]netip.Addr{one, two} {
		z, err := NewZone("weft.internal", []Record{{Name: "laptop", Addrs: a}})
		if err != nil {
			t.Fatal(err)
		}
		zones[i] = z
	}
	s.Replace(zones[0], Split{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				s.Replace(zones[i%2], Split{})
			}
		}
	})
	for range 200 {
		r := exchange(t, "udp", query("laptop.weft.internal.", miekg.TypeA), at)
		if len(r.Answer) != 1 {
			t.Errorf("told %s", said(r))
		}
		if got := s.Lookup("laptop"); len(got) != 1 || got[0] != one[0] && got[0] != two[0] {
			t.Errorf("Lookup is %v", got)
		}
	}
	close(done)
	wg.Wait()
}

func TestAnAddressThatIsNotThereYetIsWaitedFor(t *testing.T) {
	var tries atomic.Int32
	_, at := start(t, func(c *Config) {
		c.ListenConfig.Control = func(string, string, syscall.RawConn) error {
			if tries.Add(1) <= 2 {
				return syscall.EADDRNOTAVAIL
			}
			return nil
		}
	})
	exchange(t, "udp", query("laptop.weft.internal.", miekg.TypeA), at)

	s, err := NewServer(Config{Zone: testZone(t), Listen: []netip.AddrPort{loopback, loopback}, ListenConfig: net.ListenConfig{
		Control: func(string, string, syscall.RawConn) error { return syscall.EADDRNOTAVAIL },
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bindPause)
	defer cancel()
	if err := s.Start(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("when nobody waits any more: %v", err)
	}
}

func TestAPortInUseIsReportedInASentence(t *testing.T) {
	_, at := start(t, nil)
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := free.LocalAddr().(*net.UDPAddr).AddrPort()
	free.Close()
	s, err := NewServer(Config{Zone: testZone(t), Listen: []netip.AddrPort{other, at}})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Start(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "another name server uses "+at.String()) {
		t.Errorf("got %v", err)
	}
	if c, err := net.ListenPacket("udp", other.String()); err != nil {
		t.Errorf("the other address was left open: %v", err)
	} else {
		c.Close()
	}
}

func TestAClosedServerLetsGoOfEverything(t *testing.T) {
	s, at := start(t, nil)
	// A connection that just sits there.
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := NewServer(Config{Zone: testZone(t), Listen: []netip.AddrPort{at}})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Start(t.Context()); err != nil {
		t.Errorf("the port is still in use: %v", err)
	}
	if again.Start(t.Context()) == nil {
		t.Error("started twice")
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if again.Start(t.Context()) == nil {
		t.Error("started after its end")
	}
}

func TestConnectionsBeyondTheBoundAreClosedAndTheOthersServed(t *testing.T) {
	_, at := start(t, nil)
	open := make([]net.Conn, maxConns)
	for i := range open {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open[i] = c
	}
	// The server takes connections in their order: when this one is closed, all
	// others are in.
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one too many: %v", err)
	}
	conn := miekg.Conn{Conn: open[0]}
	if err := conn.WriteMsg(query("laptop.weft.internal.", miekg.TypeA)); err != nil {
		t.Fatal(err)
	}
	if r, err := conn.ReadMsg(); err != nil || len(r.Answer) != 1 {
		t.Errorf("one within: %v, %v", r, err)
	}
}

func TestDigIsContent(t *testing.T) {
	dig, err := exec.LookPath("dig")
	if err != nil {
		t.Skip("needs the program dig")
	}
	_, at := start(t, nil)
	for _, tc := range []struct{ args, want string }{
		{"laptop.weft.internal A", "100.64.0.1"},
		{"+tcp laptop.weft.internal AAAA", "fd7a::1"},
		{"+dnssec +bufsize=4096 LAPTOP.weft.internal A", "100.64.0.1"},
		{"-x 100.64.0.2", "server.weft.internal."},
		{"-x fd7a::3", "six.weft.internal."},
	} {
		args := append([]string{"@127.0.0.1", "-p", fmt.Sprint(at.Port()), "+short", "+time=10"}, strings.Fields(tc.args)...)
		out, err := exec.CommandContext(t.Context(), dig, args...).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != tc.want {
			t.Errorf("dig %s: %q, %v, want %q", tc.args, got, err, tc.want)
		}
	}
}
