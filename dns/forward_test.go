package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
)

// onePort listens on a port that is free for UDP and for TCP: what is free for one may be taken for the other.
func onePort() (udp net.PacketConn, tcp net.Listener, err error) {
	for range 16 {
		if udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			return nil, nil, err
		}
		if tcp, err = net.Listen("tcp", udp.LocalAddr().String()); err == nil {
			return udp, tcp, nil
		}
		udp.Close()
	}
	return nil, nil, err
}

// upstream runs a name server that answers as told, by UDP and TCP, until the end of the
// test. asked counts its questions.
func upstream(t *testing.T, answer func(w miekg.ResponseWriter, r *miekg.Msg)) (at netip.AddrPort, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	handler := miekg.HandlerFunc(func(w miekg.ResponseWriter, r *miekg.Msg) {
		asked.Add(1)
		answer(w, r)
	})
	udp, tcp, err := onePort()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*miekg.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		started := make(chan struct{})
		m.NotifyStartedFunc = func() { close(started) }
		go func() { _ = m.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = m.Shutdown() })
	}
	return udp.LocalAddr().(*net.UDPAddr).AddrPort(), asked
}

// give answers with an address for every name.
func give(addr string) func(miekg.ResponseWriter, *miekg.Msg) {
	return func(w miekg.ResponseWriter, r *miekg.Msg) { _ = w.WriteMsg(given(r, addr)) }
}

func given(r *miekg.Msg, addr string) *miekg.Msg {
	reply := new(miekg.Msg).SetReply(r)
	reply.Answer = []miekg.RR{&miekg.A{
		Hdr: miekg.RR_Header{Name: r.Question[0].Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 300},
		A:   net.ParseIP(addr),
	}}
	return reply
}

// fail answers with a result alone.
func fail(rcode int) func(miekg.ResponseWriter, *miekg.Msg) {
	return func(w miekg.ResponseWriter, r *miekg.Msg) { _ = w.WriteMsg(new(miekg.Msg).SetRcode(r, rcode)) }
}

// silent never answers.
func silent(miekg.ResponseWriter, *miekg.Msg) {}

func forwardTo(list ...netip.AddrPort) func(*Config) {
	return func(c *Config) { c.Upstreams = func(string) []netip.AddrPort { return list } }
}

// hasten makes a server give up on upstreams early.
func hasten(pace, total time.Duration) func(*Server) {
	return func(s *Server) { s.exchange = forwarder{pace, total}.exchange }
}

// nobody is where nothing listens.
func nobody(t *testing.T) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

const answered = "NOERROR; example.com. 300 IN A 192.0.2.80"

func TestAllOtherQuestionsGoToTheUpstreamInOrder(t *testing.T) {
	good, _ := upstream(t, give("192.0.2.80"))
	worse, worseAsked := upstream(t, give("203.0.113.1"))
	missing, _ := upstream(t, fail(miekg.RcodeNameError))
	failing, failingAsked := upstream(t, fail(miekg.RcodeServerFailure))
	refusing, _ := upstream(t, fail(miekg.RcodeRefused))
	dead, deadAsked := upstream(t, silent)
	for _, tc := range []struct {
		name string
		list []netip.AddrPort
		want string
	}{
		{"one that answers", []netip.AddrPort{good, worse}, answered},
		{"that a name does not exist is an answer", []netip.AddrPort{missing, good}, "NXDOMAIN"},
		{"one that is not there", []netip.AddrPort{nobody(t), good}, answered},
		{"one that stays silent", []netip.AddrPort{dead, good}, answered},
		{"one that fails", []netip.AddrPort{failing, good}, answered},
		{"one that refuses", []netip.AddrPort{refusing, good}, answered},
		{"all of it", []netip.AddrPort{refusing, nobody(t), failing, dead, good}, answered},
		{"the first excuse is passed on", []netip.AddrPort{failing, refusing}, "SERVFAIL"},
		{"none is there", []netip.AddrPort{nobody(t)}, "SERVFAIL"},
	} {
		_, at := start(t, forwardTo(tc.list...), hasten(50*time.Millisecond, 5*time.Second))
		if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), at)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	if n := worseAsked.Load(); n != 0 {
		t.Errorf("the second upstream was asked %d times while the first answered", n)
	}
	if n := failingAsked.Load(); n != 3 {
		t.Errorf("one that had failed was asked again: %d times in three questions", n)
	}
	if deadAsked.Load() == 0 {
		t.Error("the silent one was never asked, so it shows nothing")
	}
}

func TestASilentUpstreamIsAskedAgainAndThenGivenUp(t *testing.T) {
	dead, asked := upstream(t, silent)
	_, at := start(t, forwardTo(dead), hasten(20*time.Millisecond, 300*time.Millisecond))
	begin := time.Now()
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), at)); got != "SERVFAIL" {
		t.Errorf("told %s", got)
	}
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("given up after %v", d)
	}
	if n := asked.Load(); n != upstreamRounds {
		t.Errorf("asked %d times, want %d", n, upstreamRounds)
	}
}

func TestAPacketLostIsSentAgain(t *testing.T) {
	var n atomic.Int32
	lossy, _ := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		if n.Add(1) > 1 {
			give("192.0.2.80")(w, r)
		}
	})
	_, at := start(t, forwardTo(lossy), hasten(20*time.Millisecond, 5*time.Second))
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), at)); got != answered {
		t.Errorf("told %s", got)
	}
}

func TestAnAnswerCutByUDPIsFetchedByTCP(t *testing.T) {
	var overTCP atomic.Bool
	cutting := func(tcp bool) netip.AddrPort {
		at, _ := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
			if _, byTCP := w.RemoteAddr().(*net.TCPAddr); byTCP {
				overTCP.Store(true)
				if tcp {
					give("192.0.2.80")(w, r)
				} else {
					w.Close()
				}
				return
			}
			reply := new(miekg.Msg).SetReply(r)
			reply.Truncated = true
			_ = w.WriteMsg(reply)
		})
		return at
	}
	_, at := start(t, forwardTo(cutting(true)))
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), at)); got != answered || !overTCP.Load() {
		t.Errorf("told %s", got)
	}
	// Without TCP the client hears that there is more.
	_, at = start(t, forwardTo(cutting(false)))
	if r := exchange(t, "udp", query("example.com.", miekg.TypeA), at); !r.Truncated || r.Rcode != miekg.RcodeSuccess {
		t.Errorf("told %s, cut is %v", said(r), r.Truncated)
	}
}

func TestAForgedAnswerIsNotTakenForTheAnswer(t *testing.T) {
	at, _ := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		send := func(change func(*miekg.Msg)) {
			m := given(r, "203.0.113.66")
			change(m)
			_ = w.WriteMsg(m)
		}
		send(func(m *miekg.Msg) { m.Id++ })
		send(func(m *miekg.Msg) { m.Response = false })
		send(func(m *miekg.Msg) { m.Question[0].Name = "example.net." })
		send(func(m *miekg.Msg) { m.Question[0].Qtype = miekg.TypeAAAA })
		send(func(m *miekg.Msg) { m.Question = nil })
		_, _ = w.Write([]byte{})
		_, _ = w.Write([]byte("nonsense"))
		_, _ = w.Write([]byte("more nonsense, long enough for a header"))
		_ = w.WriteMsg(given(r, "192.0.2.80"))
	})
	_, self := start(t, forwardTo(at))
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), self)); got != answered {
		t.Errorf("told %s", got)
	}
}

func TestWhatTheClientAskedForIsAskedUpstreamAndComesBack(t *testing.T) {
	got := make(chan *miekg.Msg, 10)
	at, _ := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		got <- r
		reply := given(r, "192.0.2.80")
		reply.Question[0].Name = strings.ToLower(reply.Question[0].Name)
		reply.AuthenticatedData, reply.Ns = true, []miekg.RR{testZone(t).soa("example.com.")}
		if r.IsEdns0() != nil {
			reply.SetEdns0(777, true)
		}
		_ = w.WriteMsg(reply)
	})
	_, self := start(t, forwardTo(at))

	q := query("Example.COM.", miekg.TypeA)
	q.RecursionDesired, q.CheckingDisabled, q.AuthenticatedData = false, true, true
	q.SetEdns0(4000, true)
	q.IsEdns0().Option = []miekg.EDNS0{&miekg.EDNS0_SUBNET{Code: miekg.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IP{192, 0, 2, 0}}}
	r := exchange(t, "udp", q, self)
	asked := <-got
	if asked.RecursionDesired || !asked.CheckingDisabled || !asked.AuthenticatedData {
		t.Errorf("asked upstream with %v", asked.MsgHdr)
	}
	if opt := asked.IsEdns0(); opt == nil || !opt.Do() || opt.UDPSize() != ednsSize || len(opt.Option) != 0 {
		t.Errorf("EDNS asked upstream: %v", opt)
	}
	if r.Question[0].Name != "Example.COM." || !r.AuthenticatedData || r.Authoritative || len(r.Ns) != 1 {
		t.Errorf("told %v", r)
	}
	if opt := r.IsEdns0(); opt == nil || opt.UDPSize() != ednsSize {
		t.Errorf("EDNS told: %v", opt)
	}

	exchange(t, "udp", query("example.com.", miekg.TypeA), self)
	if asked := <-got; asked.IsEdns0() != nil || !asked.RecursionDesired {
		t.Errorf("asked upstream: %v", asked)
	}
}

func TestAResultThatTakesEDNSIsAFailureForAClientWithout(t *testing.T) {
	s, err := NewServer(Config{Zone: testZone(t), Allow: func(netip.Addr) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	forwardTo(netip.MustParseAddrPort("192.0.2.1:53"))(&s.cfg)
	s.exchange = func(_ context.Context, q *miekg.Msg, _ []netip.AddrPort) (*miekg.Msg, error) {
		return new(miekg.Msg).SetRcode(q, miekg.RcodeBadCookie), nil
	}
	w := &recorder{from: &net.UDPAddr{IP: net.IP{127, 0, 0, 1}}}
	s.ServeDNS(w, query("example.com.", miekg.TypeA))
	r := new(miekg.Msg)
	if err := r.Unpack(w.sent); err != nil || r.Rcode != miekg.RcodeServerFailure {
		t.Errorf("told %v, %v", r, err)
	}
}

func TestNamesOfTheOverlayNeverLeaveTheMachine(t *testing.T) {
	at, asked := upstream(t, give("203.0.113.1"))
	_, self := start(t, forwardTo(at))
	for _, name := range []string{"nobody.weft.internal.", "NOBODY.Weft.Internal.", "weft.internal.", "a.b.c.weft.internal.",
		"_ldap._tcp.weft.internal.", "1.0.64.100.in-addr.arpa.", "9.9.127.100.in-addr.arpa."} {
		for _, rrtype := range []uint16{miekg.TypeA, miekg.TypeTXT, miekg.TypeDS, miekg.TypeANY, miekg.TypeAXFR, 65280} {
			for _, network := range []string{"udp", "tcp"} {
				exchange(t, network, query(name, rrtype), self)
			}
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d questions left", n)
	}
}

func TestTheServerNeverAsksItself(t *testing.T) {
	s, err := NewServer(Config{Zone: testZone(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		listen, upstream string
		want             bool
	}{
		{"100.64.0.1:53", "100.64.0.1:53", true},
		{"100.64.0.1:53", "[::ffff:100.64.0.1]:53", true},
		{"100.64.0.1:53", "127.0.0.1:53", false},
		{"100.64.0.1:53", "100.64.0.1:54", false},
		{"[fd7a::1]:53", "[fd7a::1]:53", true},
		{"0.0.0.0:53", "127.0.0.1:53", true},
		{"0.0.0.0:53", "192.0.2.1:53", false},
	} {
		s.addrs.Store(&[]netip.AddrPort{netip.MustParseAddrPort(tc.listen)})
		if got := s.isSelf(netip.MustParseAddrPort(tc.upstream)); got != tc.want {
			t.Errorf("on %s, asking %s is asking itself: %v, want %v", tc.listen, tc.upstream, got, tc.want)
		}
	}
	var self atomic.Pointer[netip.AddrPort]
	_, at := start(t, func(c *Config) { c.Upstreams = func(string) []netip.AddrPort { return []netip.AddrPort{*self.Load()} } })
	self.Store(&at)
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), at)); got != "REFUSED" {
		t.Errorf("told %s", got)
	}
}

func TestALoopThroughAnotherForwarderEndsAndDoesNotMultiply(t *testing.T) {
	var self atomic.Pointer[netip.AddrPort]
	other, asked := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		c := miekg.Client{Timeout: 5 * time.Second}
		if reply, _, err := c.Exchange(query(r.Question[0].Name, r.Question[0].Qtype), self.Load().String()); err == nil {
			reply.Id = r.Id
			_ = w.WriteMsg(reply)
		}
	})
	_, at := start(t, forwardTo(other), hasten(time.Hour, 200*time.Millisecond))
	self.Store(&at)
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), at)); got != "SERVFAIL" {
		t.Errorf("told %s", got)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the question went round %d times", n)
	}
}

func TestWhenTooManyWaitTheNextIsToldAtOnceAndOurNamesStillResolve(t *testing.T) {
	release := make(chan struct{})
	slow, asked := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		<-release
		give("192.0.2.80")(w, r)
	})
	const bound = 3
	_, self := start(t, forwardTo(slow), hasten(time.Hour, 10*time.Second),
		func(s *Server) { s.forwards = make(chan struct{}, bound) })
	var wg sync.WaitGroup
	for i := range bound {
		wg.Go(func() {
			name := string(rune('a'+i)) + ".example.com."
			if r := exchange(t, "udp", query(name, miekg.TypeA), self); len(r.Answer) != 1 {
				t.Errorf("%s: told %s", name, said(r))
			}
		})
	}
	deadline := time.NewTimer(5 * time.Second)
	defer deadline.Stop()
	for poll := time.NewTicker(time.Millisecond); asked.Load() < bound; {
		select {
		case <-deadline.C:
			t.Fatal("the questions do not reach the upstream")
		case <-poll.C:
		}
	}
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), self)); got != "SERVFAIL" {
		t.Errorf("one too many was told %s", got)
	}
	if got := said(exchange(t, "udp", query("server.weft.internal.", miekg.TypeA), self)); !strings.HasPrefix(got, "NOERROR; server") {
		t.Errorf("a name of the overlay: %s", got)
	}
	close(release)
	wg.Wait()
	if got := said(exchange(t, "udp", query("example.com.", miekg.TypeA), self)); got != answered {
		t.Errorf("afterwards: %s", got)
	}
}

func TestTheSameQuestionOfManyIsAskedOnce(t *testing.T) {
	const clients = 8
	release := make(chan struct{})
	slow, asked := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		<-release
		give("192.0.2.80")(w, r)
	})
	s, self := start(t, forwardTo(slow), hasten(time.Hour, 10*time.Second))
	var wg sync.WaitGroup
	ids := make([]uint16, clients)
	for i := range clients {
		wg.Go(func() {
			q := query("example.com.", miekg.TypeA)
			r := exchange(t, "udp", q, self)
			if ids[i] = r.Id; r.Id != q.Id || said(r) != answered {
				t.Errorf("asked with id %d, told %v", q.Id, r)
			}
		})
	}
	deadline := time.NewTimer(5 * time.Second)
	defer deadline.Stop()
	for poll := time.NewTicker(time.Millisecond); len(s.forwards) < clients; {
		select {
		case <-deadline.C:
			t.Fatal("the questions do not arrive")
		case <-poll.C:
		}
	}
	close(release)
	wg.Wait()
	// More than once where a client is held up between its token and its wait.
	if n := asked.Load(); n > clients/2 {
		t.Errorf("asked %d times", n)
	}
}

func TestClosingLetsGoOfQuestionsThatWait(t *testing.T) {
	dead, asked := upstream(t, silent)
	s, self := start(t, forwardTo(dead))
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := miekg.Client{Timeout: 10 * time.Second}
		_, _, _ = c.Exchange(query("example.com.", miekg.TypeA), self.String())
	}()
	deadline := time.NewTimer(5 * time.Second)
	defer deadline.Stop()
	for poll := time.NewTicker(time.Millisecond); asked.Load() == 0; {
		select {
		case <-deadline.C:
			t.Fatal("the question does not reach the upstream")
		case <-poll.C:
		}
	}
	begin := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > upstreamTotal/2 {
		t.Errorf("closing took %v", d)
	}
	<-done
}

// recorder is a client that keeps what it is sent.
type recorder struct {
	from net.Addr
	sent []byte
}

func (r *recorder) LocalAddr() net.Addr       { return r.from }
func (r *recorder) RemoteAddr() net.Addr      { return r.from }
func (r *recorder) WriteMsg(*miekg.Msg) error { panic("not used") }
func (r *recorder) Close() error              { return nil }
func (r *recorder) TsigStatus() error         { return nil }
func (r *recorder) TsigTimersOnly(bool)       {}
func (r *recorder) Hijack()                   {}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent = append([]byte(nil), b...)
	return len(b), nil
}

// FuzzServeDNS gives the server whatever can be read as a message, from a client by UDP
// and one by TCP, with an upstream that answers with arbitrary bytes.
func FuzzServeDNS(f *testing.F) {
	seed := func(q, answer *miekg.Msg) {
		b, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		a, err := answer.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, a)
	}
	for _, tc := range zoneAnswers {
		q := query(tc.name, tc.rrtype)
		seed(q, given(q, "192.0.2.80"))
	}
	q := query("example.com.", miekg.TypeA)
	seed(q, given(q, "192.0.2.80"))
	q = query(`a\.b\000.weft.internal.`, miekg.TypeTXT).SetEdns0(100, true)
	seed(q, new(miekg.Msg).SetRcode(q, miekg.RcodeRefused))
	q = query("example.com.", miekg.TypeANY).SetEdns0(65535, true)
	seed(q, new(miekg.Msg).SetRcode(q, miekg.RcodeNameError).SetEdns0(0, true))
	seed(new(miekg.Msg), new(miekg.Msg))
	f.Add([]byte{}, []byte{1})

	z := testZone(f)
	f.Fuzz(func(t *testing.T, question, answer []byte) {
		r := new(miekg.Msg)
		if r.Unpack(question) != nil {
			return
		}
		s, err := NewServer(Config{Zone: z, Allow: func(netip.Addr) bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		forwardTo(netip.MustParseAddrPort("192.0.2.1:53"))(&s.cfg)
		s.exchange = func(_ context.Context, q *miekg.Msg, _ []netip.AddrPort) (*miekg.Msg, error) {
			if name := miekg.CanonicalName(q.Question[0].Name); strings.HasSuffix("."+name, ".weft.internal.") &&
				!strings.HasSuffix(name, `\.weft.internal.`) {
				t.Fatalf("%s was about to leave the machine", name)
			}
			up := new(miekg.Msg)
			if err := up.Unpack(answer); err != nil {
				return nil, err
			}
			// What a forwarder has checked before it takes an answer for one.
			up.Id, up.Response, up.Opcode, up.Question = q.Id, true, q.Opcode, q.Question
			return up, nil
		}
		for _, from := range []net.Addr{&net.UDPAddr{IP: net.IP{127, 0, 0, 1}}, &net.TCPAddr{IP: net.IP{127, 0, 0, 1}}} {
			w := &recorder{from: from}
			s.ServeDNS(w, r.Copy())
			if r.Response {
				if w.sent != nil {
					t.Fatal("an answer was answered")
				}
				continue
			}
			if w.sent == nil {
				t.Fatalf("no answer to %v", r)
			}
			limit := miekg.MaxMsgSize
			if _, udp := from.(*net.UDPAddr); udp {
				limit = miekg.MinMsgSize
				if opt := r.IsEdns0(); opt != nil {
					limit = min(max(limit, int(opt.UDPSize())), maxUDPReply)
				}
			}
			if len(w.sent) > limit {
				t.Fatalf("%d bytes where %d fit", len(w.sent), limit)
			}
			reply := new(miekg.Msg)
			if err := reply.Unpack(w.sent); err != nil {
				t.Fatalf("the answer cannot be read: %v", err)
			}
			if !reply.Response || reply.Id != r.Id {
				t.Fatalf("asked %v, told %v", r, reply)
			}
			if len(r.Question) == 1 && (len(reply.Question) != 1 || reply.Question[0] != r.Question[0]) {
				t.Fatalf("asked %v, told %v", r.Question, reply.Question)
			}
		}
	})
}
