package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft/lab/netns"
)

const (
	// bondPort is where the benchmark's own receivers listen.
	bondPort = 5300
	// sampleEvery is the resolution of figures over time.
	sampleEvery = 100 * time.Millisecond
)

// A tcpFlow is one connection that a dials and that carries as much as it can, from a or from b. Both ends are in this
// process, so whatever it is that carries the connection, it is measured by the same lines.
type tcpFlow struct {
	sender, receiver *net.TCPConn
	listener         net.Listener // MPTCP's further connections go to it
	received         atomic.Int64
	stall            stallClock
}

// A stallClock knows the longest time without news since it was last asked.
type stallClock struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	at      time.Time // when that began
}

func (s *stallClock) tick(now time.Time) {
	s.mu.Lock()
	if gap := now.Sub(s.last); !s.last.IsZero() && gap > s.longest {
		s.longest, s.at = gap, s.last
	}
	s.last = now
	s.mu.Unlock()
}

// take returns the longest silence, one that lasts included, and begins anew.
func (s *stallClock) take(now time.Time) (longest time.Duration, at time.Time) {
	s.tick(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	longest, at = s.longest, s.at
	s.longest = 0
	return longest, at
}

// A dialling says between which addresses a connection is made.
type dialling struct {
	from, to  netip.Addr // from is zero: what the routes say
	port      uint16
	multipath bool // by MPTCP
	eager     bool // and read at once, whatever that costs: for links without a limit
}

// dial makes the connection, from a to b, and returns a's end and b's, and the listener, which is to be closed last.
func (w *bondWorld) dial(ctx context.Context, d dialling) (a, b *net.TCPConn, listener net.Listener, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	at := netip.AddrPortFrom(d.to, d.port)
	var opened net.Listener
	defer func() {
		if err != nil && opened != nil {
			opened.Close()
		}
	}()
	if err = w.b.Do(func() error {
		var l net.ListenConfig
		l.SetMultipathTCP(d.multipath)
		opened, err = l.Listen(ctx, "tcp", at.String())
		return err
	}); err != nil {
		return nil, nil, nil, fmt.Errorf("listening on b: %w", err)
	}
	opened.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := opened.Accept()
		accepted <- c
	}()
	if err = w.a.Do(func() error {
		dialer := net.Dialer{}
		dialer.SetMultipathTCP(d.multipath)
		if d.from.IsValid() {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.from, 0))
		}
		c, err := dialer.DialContext(ctx, "tcp", at.String())
		if err == nil {
			a = c.(*net.TCPConn)
		}
		return err
	}); err != nil {
		return nil, nil, nil, fmt.Errorf("dialling from a: %w", err)
	}
	c := <-accepted
	if c == nil {
		a.Close()
		return nil, nil, nil, errors.New("b accepted no connection")
	}
	if d.multipath {
		if is, err := a.MultipathTCP(); err != nil || !is {
			a.Close()
			c.Close()
			return nil, nil, nil, errors.Join(errors.New("the kernel made a plain connection where MPTCP was asked for"), err)
		}
	}
	return a, c.(*net.TCPConn), opened, nil
}

// startTCP makes a connection and fills it, from a if out, until ctx ends.
func (w *bondWorld) startTCP(ctx context.Context, d dialling, out bool) (*tcpFlow, error) {
	a, b, listener, err := w.dial(ctx, d)
	if err != nil {
		return nil, err
	}
	f := &tcpFlow{sender: a, receiver: b, listener: listener}
	if !out {
		f.sender, f.receiver = b, a
	}
	// What is under way when it ends is nobody's: a reset ends it.
	a.SetLinger(0)
	b.SetLinger(0)
	context.AfterFunc(ctx, func() { f.close() })
	go func() {
		chunk := make([]byte, 256<<10)
		for {
			if _, err := f.sender.Write(chunk); err != nil {
				return
			}
		}
	}()
	if d.eager {
		go f.readEagerly()
		return f, nil
	}
	if err := f.readAtPace(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// readEagerly reads what comes when it comes.
func (f *tcpFlow) readEagerly() {
	buf := make([]byte, 256<<10)
	for {
		n, err := f.receiver.Read(buf)
		if err != nil {
			return
		}
		f.received.Add(int64(n))
		f.stall.tick(time.Now())
	}
}

// readAtPace reads what has come every paceEvery. The kernel acknowledges meanwhile what it would, for as long as less has come than it
// is to wake anybody for.
func (f *tcpFlow) readAtPace() error {
	raw, err := f.receiver.SyscallConn()
	if err != nil {
		return err
	}
	var rate lately
	everyPace(func(now time.Time, buf []byte) bool {
		n, err := netns.ReadNow(raw, buf)
		for err == nil && n > 0 {
			f.received.Add(int64(n))
			f.stall.tick(now)
			if each, news := rate.in(now, n); news {
				// Twice of what comes until somebody looks again. Where that cannot be set, Go's poller is woken for each segment, and no harm done.
				_ = netns.SetReceiveLowAt(f.receiver, max(1, 2*each))
			}
			if n < len(buf) {
				return true
			}
			n, err = netns.ReadNow(raw, buf)
		}
		return err == nil
	})
	return nil
}

func (f *tcpFlow) close() {
	f.sender.Close()
	f.receiver.Close()
	f.listener.Close()
}

// TCPFigures are what the kernel says of a connection at either end, of the time that counts.
type TCPFigures struct {
	RTTms       float64 `json:"rtt_ms"` // smoothed, the mean of what was looked at ten times a second
	Window      float64 `json:"window"` // packets, likewise
	SentAgain   float64 `json:"sent_again"`
	OutOfOrder  float64 `json:"behind_a_hole"` // segments that arrived behind one, of all: lost or late is all the same
	ReorderSeen uint32  `json:"reorder_seen"`  // how often the sender learnt that its packets had overtaken each other

	// Came is the payload that came out of the overlay, in order or behind a hole, every sampleEvery.
	Came []float64 `json:"mbit_out_of_the_overlay_over_time,omitempty"`
}

// A tcpMeter collects them.
type tcpMeter struct {
	flow   *tcpFlow
	first  [2]netns.TCPInfo // sender, receiver
	last   [2]netns.TCPInfo
	rtt    float64
	window float64
	n      int
}

// look takes a sample; one that counts is averaged.
func (m *tcpMeter) look(counts bool) {
	s, err := netns.InfoOfTCP(m.flow.sender)
	if err != nil {
		return
	}
	r, err := netns.InfoOfTCP(m.flow.receiver)
	if err != nil {
		return
	}
	m.last = [2]netns.TCPInfo{s, r}
	if !counts {
		m.first = m.last
		return
	}
	m.rtt += float64(s.RTT) / float64(time.Millisecond)
	m.window += float64(s.Window)
	m.n++
}

func (m *tcpMeter) figures() *TCPFigures {
	if m.n == 0 {
		return nil
	}
	share := func(a, b uint64) float64 { return float64(a) / float64(max(1, b)) }
	sent, got, sent0, got0 := m.last[0], m.last[1], m.first[0], m.first[1]
	return &TCPFigures{RTTms: m.rtt / float64(m.n), Window: m.window / float64(m.n),
		SentAgain:   share(sent.SentAgain-sent0.SentAgain, sent.Sent-sent0.Sent),
		OutOfOrder:  share(uint64(got.OutOfOrder-got0.OutOfOrder), uint64(got.Arrived-got0.Arrived)),
		ReorderSeen: sent.Reordered - sent0.Reordered}
}
