package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/host"
	"weft/stream"
	"weft/wire"
)

// A data plane's run: 44 WireGuard packets of an inner MTU of 1420, with the relay's prefix.
const (
	runDatagrams = 44
	runPayload   = 1452
)

func udpRun(to weft.NodeID, size int) []byte {
	var b []byte
	for range runDatagrams {
		b = append(wire.AppendData(b, to), make([]byte, size-wire.DataPrefix)...)
	}
	return b
}

func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}

// hotPath is a loop, two nodes bound over UDP and two by streams that lead nowhere.
type hotPath struct {
	w      *world
	l      *loop
	a, b   netip.AddrPort
	stream *session
	run    []byte
}

func newHotPath(t testing.TB) *hotPath {
	w := newRelay(t, nil)
	conn := listenUDP(t, "udp4", "127.0.0.1:0")
	host.SetUDPBuffers(conn, udpBuffer)
	socket, err := host.NewUDPSocket(conn)
	if err != nil {
		t.Fatal(err)
	}
	h := &hotPath{w: w, l: w.relay.newLoop(socket, nil)}
	for i, at := range []*netip.AddrPort{&h.a, &h.b} {
		m := w.member(weft.NodeID(i + 1))
		*at = listenUDP(t, "udp4", "127.0.0.1:0").LocalAddr().(*net.UDPAddr).AddrPort()
		box, _ := wire.RelayBox(m.key, w.desc.Key)
		frame := wire.AppendBind(nil, wire.Bind{Ticket: m.ticket, Cookie: w.relay.cookies.make(*at, 0)}, box)
		w.relay.takeBind(nil, bind{frame: frame, from: *at, socket: socket})
	}
	for i := range 2 {
		m := w.member(weft.NodeID(i + 3))
		box, _ := wire.RelayBox(m.key, w.desc.Key)
		tk, _ := wire.ParseTicket(m.ticket)
		ss := &session{s: w.relay, conn: &script{}}
		if err := ss.register(&admission{ticket: tk, box: box}); err != nil {
			t.Fatal(err)
		}
		h.stream = ss
	}
	if st := w.relay.Stats(); st.UDP != 2 || st.Streams != 2 {
		t.Fatalf("not all are bound: %+v", st)
	}
	return h
}

// fromUDP forwards a run from node 1 as the loop would.
func (h *hotPath) fromUDP(to weft.NodeID) {
	for at := 0; at < len(h.run); at += runPayload {
		wire.AppendData(h.run[at:at], to)
	}
	h.l.begin()
	h.l.take(&host.UDPRead{Data: h.run, Segment: runPayload, From: h.a})
	h.l.flush()
}

// fromStream forwards frames from node 4 as its reader would.
func (h *hotPath) fromStream(to weft.NodeID, frames []byte) {
	for at := 0; at < len(frames); at += runPayload {
		wire.AppendStreamData(frames[at:at], to, runPayload-wire.StreamDataPrefix)
	}
	run, count := streamRun(frames)
	if w := h.stream.forward(h.w.relay.now(), frames[:run], count, nil); w != nil {
		h.w.relay.flush(w)
	}
}

// drain takes what waits for node 3's stream, as its writer would.
func (h *hotPath) drain() {
	q := h.w.relay.nodes.get(nodeName{testNetwork, 3}).stream.Load().out
	for {
		_, c, _ := q.take(nil)
		if c == nil {
			return
		}
		chunks.Put(c)
	}
}

func TestForwardingAllocatesNothing(t *testing.T) {
	h := newHotPath(t)
	h.run = udpRun(2, runPayload)
	frames := make([]byte, runDatagrams*runPayload)
	h.drain()
	for _, c := range []struct {
		name  string
		pools bool // the race detector has pools forget at random
		f     func()
	}{
		{"UDP to UDP", false, func() { h.fromUDP(2) }},
		{"UDP to nobody", false, func() { h.fromUDP(99) }},
		{"UDP to a stream", true, func() { h.fromUDP(3); h.drain() }},
		{"stream to stream", true, func() { h.fromStream(3, frames); h.drain() }},
		{"stream to UDP", true, func() { h.fromStream(2, frames) }},
	} {
		if c.pools && raceDetector() {
			continue
		}
		if n := testing.AllocsPerRun(200, c.f); n != 0 {
			t.Errorf("%s: %v allocations for a run of %d datagrams", c.name, n, runDatagrams)
		}
	}
	if st := h.w.relay.Stats(); st.SentUDP.Datagrams < 400*runDatagrams && !raceDetector() {
		t.Errorf("nothing was forwarded: %+v", st)
	}
}

// What forwarding costs the relay alone; nobody reads what it sends.
func BenchmarkForwardRun(b *testing.B) {
	h := newHotPath(b)
	h.run = udpRun(2, runPayload)
	frames := make([]byte, runDatagrams*runPayload)
	h.drain()
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"UDPtoUDP", func() { h.fromUDP(2) }},
		{"UDPtoStream", func() { h.fromUDP(3); h.drain() }},
		{"StreamToStream", func() { h.fromStream(3, frames); h.drain() }},
		{"StreamToUDP", func() { h.fromStream(2, frames) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(runDatagrams * runPayload)
			b.ReportAllocs()
			for b.Loop() {
				c.f()
			}
		})
	}
}

// window keeps a sender from running ahead of its receiver by more than so many bytes.
type window struct {
	size     int64
	received atomic.Int64
	more     chan struct{}
}

func newWindow(size int64) *window { return &window{size: size, more: make(chan struct{}, 1)} }

func (w *window) got(n int) {
	w.received.Add(int64(n))
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// wait returns when sent bytes are no more than a window ahead; what was lost is forgotten after a while.
func (w *window) wait(sent *int64) {
	for *sent-w.received.Load() > w.size {
		select {
		case <-w.more:
		case <-time.After(100 * time.Millisecond):
			*sent = w.received.Load()
		}
	}
}

// sink counts what a UDP socket receives.
func (w *window) sink(conn *net.UDPConn, first func([]byte)) {
	host.SetUDPBuffers(conn, udpBuffer)
	s, err := host.NewUDPSocket(conn)
	if err != nil {
		panic(err)
	}
	for r := host.NewUDPReader(s); ; {
		reads, err := r.Read()
		if err != nil {
			return
		}
		for i := range reads {
			if first != nil {
				first(reads[i].Data)
			}
			w.got(len(reads[i].Data))
		}
	}
}

func measure(b *testing.B, bytes int64, f func()) (perSecond float64) {
	b.SetBytes(bytes)
	began, n := time.Now(), 0
	for b.Loop() {
		f()
		n++
	}
	return float64(bytes) * float64(n) / time.Since(began).Seconds()
}

// Through the relay, beside the same without it: runs of datagrams, and single ones.
func BenchmarkUDPRelay(b *testing.B) {
	for _, c := range []struct {
		name string
		runs bool
	}{{"runs", true}, {"singles", false}} {
		var direct float64
		for _, relayed := range []bool{false, true} {
			name := c.name + "/direct"
			if relayed {
				name = c.name + "/relayed"
			}
			b.Run(name, func(b *testing.B) {
				w := newRelay(b, nil).serveUDP(nil)
				from, to := w.member(1).udp().bind(), w.member(2).udp().bind()
				host.SetUDPBuffers(from.conn, udpBuffer)
				socket, err := host.NewUDPSocket(from.conn)
				if err != nil {
					b.Fatal(err)
				}
				var dest host.UDPDest
				socket.SetDest(&dest, to.addr(), netip.Addr{})
				if relayed {
					socket.SetDest(&dest, w.udp4, netip.Addr{})
				}
				if !c.runs {
					socket.WithoutOffload()
				}
				win := newWindow(512 << 10)
				to.conn.SetReadDeadline(time.Time{})
				done := make(chan struct{})
				go func() { defer close(done); win.sink(to.conn, nil) }()
				out, run, sent := host.NewUDPWriter(), udpRun(2, runPayload), int64(0)
				rate := measure(b, int64(len(run)), func() {
					out.Add(&dest, run, runPayload)
					out.Flush()
					sent += int64(len(run))
					win.wait(&sent)
				})
				b.StopTimer()
				if !relayed {
					direct = rate
				} else if direct > 0 {
					b.ReportMetric(rate/direct, "of-direct")
				}
				to.conn.Close()
				<-done
			})
		}
	}
}

// Streams through the relay, beside one plain TCP connection over loopback with writes of 64 KiB.
func BenchmarkStreamRelay(b *testing.B) {
	var plain float64
	b.Run("plainTCP", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		win, sent := newWindow(512<<10), int64(0)
		go func() {
			if c, err := l.Accept(); err == nil {
				buf := make([]byte, bigRead)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					win.got(n)
				}
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, 64<<10)
		plain = measure(b, int64(len(buf)), func() {
			c.Write(buf)
			sent += int64(len(buf))
			win.wait(&sent)
		})
	})
	for _, secure := range []bool{false, true} {
		b.Run(map[bool]string{false: "relayed", true: "relayedTLS"}[secure], func(b *testing.B) {
			w := newRelay(b, nil)
			if secure {
				w.serveTLS(b)
			} else {
				w.serveHTTP()
			}
			win := newWindow(512 << 10)
			m, n := w.member(1), w.member(2)
			dial := func(m *member, deliver func(weft.NodeID, [][]byte)) *Stream {
				s, err := DialStream(context.Background(), StreamConfig{
					Relay: w.desc, NodeKey: m.key, Ticket: func() []byte { return m.ticket }, Logger: discard, Deliver: deliver,
				})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { s.Close() })
				return s
			}
			dial(n, func(_ weft.NodeID, datagrams [][]byte) {
				k := 0
				for _, d := range datagrams {
					k += len(d)
				}
				win.got(k)
			})
			s := dial(m, nil)
			run, sent := make([][]byte, runDatagrams), int64(0)
			for i := range run {
				run[i] = make([]byte, runPayload)
			}
			rate := measure(b, runDatagrams*runPayload, func() {
				s.SendTo(2, run)
				sent += runDatagrams * runPayload
				win.wait(&sent)
			})
			b.StopTimer()
			if plain > 0 {
				b.ReportMetric(rate/plain, "of-plain-TCP")
			}
			if st := w.relay.Stats(); st.Drops[DropQueue] > 0 || s.Lost() > 0 {
				b.ReportMetric(float64(st.Drops[DropQueue]+s.Lost()), "lost")
			}
		})
	}
}

func (w *world) serveTLS(b testing.TB) {
	dir := b.TempDir()
	cert, fingerprint, err := stream.LoadOrCreateCertificate(filepath.Join(dir, "c"), filepath.Join(dir, "k"), nil)
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: w.relay, ErrorLog: log.New(io.Discard, "", 0)}
	go s.Serve(stream.Listener(l, &tls.Config{Certificates: []tls.Certificate{cert}}))
	b.Cleanup(func() { s.Close() })
	w.desc.URL, w.desc.Fingerprint = "https://"+l.Addr().String(), fingerprint
}

// More is offered than the relay can forward: what goes through must not get less, as an overloaded derper's does.
func BenchmarkOverload(b *testing.B) {
	for _, senders := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("%dsenders", senders), func(b *testing.B) {
			w := newRelay(b, nil).serveUDP(nil)
			to := w.member(100).udp().bind()
			win := newWindow(0)
			to.conn.SetReadDeadline(time.Time{})
			done := make(chan struct{})
			go func() { defer close(done); win.sink(to.conn, nil) }()
			stop := make(chan struct{})
			var offered atomic.Int64
			finished := make(chan struct{}, senders)
			for i := range senders {
				from := w.member(weft.NodeID(i + 1)).udp().bind()
				go func() {
					defer func() { finished <- struct{}{} }()
					socket, _ := host.NewUDPSocket(from.conn)
					var dest host.UDPDest
					socket.SetDest(&dest, w.udp4, netip.Addr{})
					out, run := host.NewUDPWriter(), udpRun(100, runPayload)
					for {
						select {
						case <-stop:
							return
						default:
						}
						out.Add(&dest, run, runPayload)
						out.Flush()
						offered.Add(int64(len(run)))
						runtime.Gosched()
					}
				}()
			}
			win.received.Store(0)
			offered.Store(0)
			began := time.Now()
			for b.Loop() { // an iteration is a MiB that arrived
				for at := win.received.Load() + 1<<20; win.received.Load() < at; {
					<-time.After(100 * time.Microsecond)
				}
			}
			took := time.Since(began).Seconds()
			b.SetBytes(1 << 20)
			b.ReportMetric(float64(win.received.Load())*8/took/1e9, "Gbit/s")
			b.ReportMetric(float64(win.received.Load())/float64(offered.Load()), "of-offered")
			close(stop)
			for range senders {
				<-finished
			}
			to.conn.Close()
			<-done
		})
	}
}
