package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"weft"
	"weft/engine"
	"weft/engine/segment"
	"weft/key"
	"weft/wire"
)

// A crowd is one engine with many peers, some of which are active: engines of their own in the same process, on
// loopback. Devices are in memory, so that the engine's own work is all there is, and what each peer costs shows the
// more: there is no TCP and no kernel's interface beside it.
//
//	source of flows -> hub's engine -> UDP on loopback -> a peer's engine -> its sink, which lets the source go on
//
// There are as many flows, with as much under way, whether they go to one peer or to one each.

// CrowdConfig is a crowd.
type CrowdConfig struct {
	Peers  int // configured
	Active int // that flows go to
	Flows  int
	Length time.Duration
}

// A CrowdResult is what a crowd gave.
type CrowdResult struct {
	Bits       float64 `json:"bits_per_second"`
	Lost       int     `json:"super_packets_lost"`
	Configured float64 `json:"bytes_per_configured_peer"`
	// Session is what a peer takes beside that once it has been spoken with, at both ends together.
	Session float64 `json:"bytes_per_peer_spoken_with"`
}

const (
	crowdPeers  = 1000
	crowdActive = 50
	crowdFirst  = weft.NodeID(3) // behind the two hubs
	// crowdPiece is the payload of a segment: the engine's MTU less IPv4's and TCP's headers. crowdPieces of them are a
	// super-packet, and each flow has one under way.
	crowdPiece  = engine.MTU - crowdHeader
	crowdPieces = 32
	crowdHeader = 20 + 20
)

// crowds measures the engine with one peer and with many.
func (r *overlayRun) crowds(ctx context.Context) error {
	s := &site{overlayRun: r} // without hosts: for its meter
	defer s.disturbances()
	for round := 1; round <= r.Rounds; round++ {
		for _, c := range []struct {
			name          string
			peers, active int
		}{{onePeer, 1, 1}, {crowd, crowdPeers, crowdActive}} {
			var got CrowdResult
			err := s.undisturbed(c.name, func() error {
				cmd := exec.CommandContext(ctx, r.Binary, "bench", "crowd", "--peers", strconv.Itoa(c.peers), "--active",
					strconv.Itoa(c.active), "--flows", strconv.Itoa(crowdActive), "--length", r.Length.String())
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				if err != nil {
					return err
				}
				return json.Unmarshal(out, &got)
			}, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.report.Add(c.name, crowdRate, "Mbit/s", round, got.Bits/1e6)
			if c.peers > 1 {
				// One that has been spoken with and is idle again takes both; half of the second is the other end's.
				r.report.Add(c.name, crowdBytes, "KiB", round, (got.Configured+got.Session)/1024)
			}
			r.say("round %d: %-18s %6.0f Mbit/s, %d lost; %.0f bytes per configured peer, %.0f more per active one (both ends)", round,
				c.name, got.Bits/1e6, got.Lost, got.Configured, got.Session)
		}
	}
	return nil
}

// Crowd runs one.
func Crowd(ctx context.Context, cfg CrowdConfig) (got CrowdResult, err error) {
	if cfg.Active < 1 || cfg.Peers < cfg.Active || cfg.Flows < cfg.Active || cfg.Flows > 1<<12 {
		return got, errors.New("there must be an active peer, no more of them than peers, and a flow for each")
	}
	// The first hub is there to meet everybody before memory is looked at: engines take what they need when they first
	// need it.
	var sources [2]*crowdSource
	var hubs [2]*member
	var others []*member
	defer func() {
		for _, m := range append(others, hubs[:]...) {
			if m != nil {
				m.Close()
			}
		}
	}()
	for i := range hubs {
		sources[i] = newSource(weft.NodeID(1+i), cfg.Flows)
		if hubs[i], err = newMember(weft.NodeID(1+i), sources[i]); err != nil {
			return got, err
		}
	}
	peers := make([]engine.Peer, cfg.Peers)
	for i := range peers {
		id := crowdFirst + weft.NodeID(i)
		k := key.NewPrivate[key.Node]()
		if i < cfg.Active {
			m, err := newMember(id, newSink(sources))
			if err != nil {
				return got, err
			}
			others, k = append(others, m), m.key
			if err := m.SetPeers([]engine.Peer{hubs[0].peer(), hubs[1].peer()}); err != nil {
				return got, err
			}
			m.route(1, hubs[0].addr())
			m.route(2, hubs[1].addr())
		}
		peers[i] = engine.Peer{ID: id, Key: k.Public(), Allowed: crowdPrefixes(id)}
	}
	set := func(hub *member) error {
		if err := hub.SetPeers(peers); err != nil {
			return err
		}
		for i, p := range peers {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 9) // where nobody is
			if i < len(others) {
				at = others[i].addr()
			}
			hub.route(p.ID, at)
		}
		return nil
	}
	if err := set(hubs[0]); err != nil {
		return got, err
	}
	if err := sources[0].meet(ctx, 0, cfg.Active); err != nil {
		return got, err
	}
	before, err := inUse(ctx)
	if err != nil {
		return got, err
	}
	if err := set(hubs[1]); err != nil {
		return got, err
	}
	after, err := inUse(ctx)
	if err != nil {
		return got, err
	}
	got.Configured = (after - before) / float64(cfg.Peers)
	source := sources[1]
	if err := source.meet(ctx, 0, 1); err != nil {
		return got, err
	}
	source.limit.Store(int64(cfg.Flows)) // all to one: the hub's queues have been as long as they get
	source.Wake()
	if err := pause(ctx, crowdPatience); err != nil {
		return got, err
	}
	if err := source.quiet(ctx); err != nil {
		return got, err
	}
	if before, err = inUse(ctx); err != nil {
		return got, err
	}
	if err := source.meet(ctx, 1, cfg.Active); err != nil {
		return got, err
	}
	if after, err = inUse(ctx); err != nil {
		return got, err
	}
	if cfg.Active > 1 {
		got.Session = (after - before) / float64(cfg.Active-1)
	}
	source.limit.Store(int64(cfg.Flows))
	source.Wake()
	if err := pause(ctx, warmUp); err != nil {
		return got, err
	}
	arrived, began, lost := source.arrived(), time.Now(), source.lost.Load()
	if err := pause(ctx, cfg.Length); err != nil {
		return got, err
	}
	got.Bits = float64(source.arrived()-arrived) * 8 / time.Since(began).Seconds()
	got.Lost = int(source.lost.Load() - lost)
	if got.Bits == 0 {
		return got, errors.New("nothing arrived")
	}
	return got, nil
}

// smallestStack is a goroutine's, in bytes (stackMin, runtime/stack.go).
const smallestStack = 2 << 10

// inUse is what lies in memory after a collection, in bytes: the heap, and a stack for each goroutine. It does not count what the
// runtime has for stacks (StackInuse), which grow with a call and shrink with a collection: that is more than a few peers take.
// What is being worked on is given back soon, but on a busy machine not at once: the least counts that stays so for a while.
func inUse(ctx context.Context) (float64, error) {
	const same, apart = 5, 20 * time.Millisecond // readings
	least := math.Inf(1)
	for left := same; left > 0; left-- {
		runtime.GC()
		runtime.GC() // what pools have kept over the first
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if now := float64(m.HeapAlloc + uint64(runtime.NumGoroutine())*smallestStack); now < least {
			least, left = now, same
		}
		if err := pause(ctx, apart); err != nil {
			return 0, err
		}
	}
	return least, nil
}

// A member is an engine of a crowd.
type member struct {
	*engine.Engine
	id  weft.NodeID
	key key.NodePrivate
}

func newMember(id weft.NodeID, device engine.Device) (*member, error) {
	m := &member{id: id, key: key.NewPrivate[key.Node]()}
	var err error
	if m.Engine, err = engine.New(engine.Config{Key: m.key, Self: id, Device: device, Handler: deaf{}, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, err
	}
	return m, m.Up()
}

func (m *member) addr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), m.Port())
}

func (m *member) peer() engine.Peer {
	return engine.Peer{ID: m.id, Key: m.key.Public(), Allowed: crowdPrefixes(m.id)}
}

// route sends to a peer at an address, and counts what comes from there as its.
func (m *member) route(id weft.NodeID, at netip.AddrPort) {
	m.Learn(id, at)
	m.SetRoute(id, weft.DirectVia(0, at))
}

func crowdAddr(id weft.NodeID) netip.Addr {
	return netip.AddrFrom4([4]byte{100, 64, byte(id >> 8), byte(id)})
}

// crowdPrefixes are an IPv4 and an IPv6 address, as every node has them.
func crowdPrefixes(id weft.NodeID) []netip.Prefix {
	six := netip.MustParseAddr("fd00::").As16()
	binary.BigEndian.PutUint32(six[12:], uint32(id))
	return []netip.Prefix{netip.PrefixFrom(crowdAddr(id), 32), netip.PrefixFrom(netip.AddrFrom16(six), 128)}
}

// deaf is a handler: a crowd has no mesh.
type deaf struct{}

func (deaf) HandleDatagram(weft.LinkID, netip.AddrPort, wire.Class, []byte) {}
func (deaf) HandleRelayed(weft.Via, weft.NodeID, []byte)                    {}
func (deaf) Active(weft.NodeID)                                             {}
func (deaf) Silent(weft.NodeID, weft.Via, string)                           {}

// crowdSource is the hub's device: flows of TCP in super-packets, each of which goes on when its last one has arrived.
type crowdSource struct {
	hub    weft.NodeID
	flows  []crowdFlow
	active atomic.Int64 // peers: flow i goes to peer i, modulo these
	limit  atomic.Int64 // flows that may send now
	next   int          // the reader's
	more   chan struct{}
	lost   atomic.Uint64
	closed atomic.Bool
}

type crowdFlow struct {
	sent  atomic.Uint64 // bytes
	got   atomic.Uint64
	since time.Time // when the last was sent; the reader's
	_     [24]byte  // no two flows' counts in one line of the cache
}

// crowdPatience is how long a flow waits for a super-packet before it takes it for lost: TCP's shortest timeout in
// Linux (TCP_RTO_MIN).
const crowdPatience = 200 * time.Millisecond

// crowdPort is the port of the first flow: their numbers are told by it.
const crowdPort = 10000

func newSource(hub weft.NodeID, flows int) *crowdSource {
	return &crowdSource{hub: hub, flows: make([]crowdFlow, flows), more: make(chan struct{}, 1)}
}

// meet has each of some active peers get a super-packet, one after the other; then there is silence.
func (s *crowdSource) meet(ctx context.Context, from, to int) error {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.active.Store(int64(to))
	for i := from; i < to; i++ {
		before := s.flows[i].got.Load()
		s.limit.Store(int64(i + 1))
		for s.flows[i].got.Load() == before {
			s.Wake()
			if err := pause(ctx, time.Millisecond); err != nil {
				return fmt.Errorf("peer %d of %d was not met: %w", i+1, to, err)
			}
		}
	}
	return s.quiet(ctx)
}

// quiet holds all flows, and waits until what is under way has arrived.
func (s *crowdSource) quiet(ctx context.Context) error {
	s.limit.Store(0)
	return pause(ctx, crowdPatience)
}

// arrived is how many bytes have, of all flows.
func (s *crowdSource) arrived() (n uint64) {
	for i := range s.flows {
		n += s.flows[i].got.Load()
	}
	return n
}

func (s *crowdSource) Name() string              { return "" }
func (s *crowdSource) Queues() []engine.Queue    { return []engine.Queue{s} }
func (s *crowdSource) Offloads() engine.Offloads { return engine.Offloads{TCP: true, UDP: true} }
func (s *crowdSource) Write([]byte) error        { return nil }

func (s *crowdSource) Wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *crowdSource) Close() error {
	s.closed.Store(true)
	s.Wake()
	return nil
}

// Await does not wait longer than for what is lost: no bond asks for less here.
func (s *crowdSource) Await(time.Duration) error {
	select {
	case <-s.more:
	case <-time.After(crowdPatience):
	}
	return nil
}

func (s *crowdSource) TryRead(buf []byte) (int, error) {
	if s.closed.Load() {
		return 0, os.ErrClosed
	}
	limit := int(s.limit.Load())
	for range limit {
		i := s.next % limit
		s.next = i + 1
		f := &s.flows[i]
		sent, got := f.sent.Load(), f.got.Load()
		if sent > got {
			if time.Since(f.since) < crowdPatience {
				continue
			}
			s.lost.Add(1)
			sent = got
		}
		n := s.fill(buf, i, uint32(sent))
		f.since = time.Now()
		f.sent.Store(sent + crowdPiece*crowdPieces)
		return n, nil
	}
	return 0, nil
}

// fill writes a super-packet of a flow, as the kernel would: its checksum is left to be made.
func (s *crowdSource) fill(buf []byte, flow int, seq uint32) int {
	const payload = crowdPiece * crowdPieces
	h := segment.Header{Flags: segment.NeedsChecksum, Type: segment.TCPv4, HeaderLen: crowdHeader, Size: crowdPiece, ChecksumStart: 20, ChecksumAt: 16}
	h.Put(buf)
	p := buf[segment.HeaderSize : segment.HeaderSize+crowdHeader+payload]
	src, dst := crowdAddr(s.hub).As4(), crowdAddr(crowdFirst+weft.NodeID(flow%int(s.active.Load()))).As4()
	ip, tcp := p[:20], p[20:crowdHeader]
	clear(p[:crowdHeader])
	const ect0 = 2 // a queue marks it where it would drop (RFC 3168)
	ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, ect0, 0x40, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(len(p)))
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^crowdSum(ip, 0))
	binary.BigEndian.PutUint16(tcp[0:], uint16(s.hub))
	binary.BigEndian.PutUint16(tcp[2:], uint16(crowdPort+flow))
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 5<<4, 0x10 // ACK
	binary.BigEndian.PutUint16(tcp[14:], 1<<15)
	binary.BigEndian.PutUint16(tcp[16:], crowdSum(ip[12:20], uint32(6+crowdPiece*crowdPieces+20)))
	return segment.HeaderSize + len(p)
}

// crowdSum is the one's complement sum of RFC 1071.
func crowdSum(b []byte, sum uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// crowdSink is a peer's device. What arrives lets its source go on.
type crowdSink struct {
	sources [2]*crowdSource
	closed  atomic.Bool
	wake    chan struct{}
}

func newSink(sources [2]*crowdSource) *crowdSink {
	return &crowdSink{sources: sources, wake: make(chan struct{}, 1)}
}

func (s *crowdSink) Name() string              { return "" }
func (s *crowdSink) Queues() []engine.Queue    { return []engine.Queue{s} }
func (s *crowdSink) Offloads() engine.Offloads { return engine.Offloads{TCP: true, UDP: true} }

func (s *crowdSink) TryRead([]byte) (int, error) {
	if s.closed.Load() {
		return 0, os.ErrClosed
	}
	return 0, nil
}

func (s *crowdSink) Await(time.Duration) error {
	<-s.wake
	return nil
}

func (s *crowdSink) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *crowdSink) Close() error {
	s.closed.Store(true)
	s.Wake()
	return nil
}

func (s *crowdSink) Write(packet []byte) error {
	if len(packet) <= segment.HeaderSize+crowdHeader {
		return segment.ErrShort
	}
	p := packet[segment.HeaderSize:]
	hub, flow := int(binary.BigEndian.Uint16(p[20:]))-1, int(binary.BigEndian.Uint16(p[22:]))-crowdPort
	if hub < 0 || hub >= len(s.sources) || flow < 0 || flow >= len(s.sources[hub].flows) {
		return segment.ErrKind
	}
	source := s.sources[hub]
	f := &source.flows[flow]
	if f.got.Add(uint64(len(p)-crowdHeader)) >= f.sent.Load() {
		source.Wake()
	}
	return nil
}
