package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"weft"
	"weft/engine"
	"weft/gather"
	"weft/host"
	"weft/key"
	"weft/path"
	"weft/wire"
)

// Numbers of the mesh.
const (
	// framesQueued is how many frames wait for the mesh at most; past it they are dropped, as a network may.
	framesQueued = 1024
	// maxFrame is the longest frame that the mesh takes, in bytes: a probe as long as an Ethernet packet.
	maxFrame = 1500
	// underlayMTU is the length of a full packet on the underlay, in bytes: the overlay's MTU and what
	// WireGuard (32), UDP (8) and IPv4 (20) add.
	underlayMTU = engine.MTU + 32 + 8 + 20
	// watchFast and watchSlow are how often traffic is compared with what was acknowledged: fast while there
	// is any. A silent path is found within a few fast ticks; slow ones keep an idle machine asleep.
	watchFast = 100 * time.Millisecond
	watchSlow = time.Second
	// watchLinger is how long the fast ticks go on after the last traffic.
	watchLinger = 2 * time.Second
	// greetPatience is how long one end of a new pair leaves the handshake to the other: a round trip, and not long
	// for who waits for a page.
	greetPatience = 500 * time.Millisecond
	// greetAgain is how soon it looks again: before WireGuard's REKEY_TIMEOUT (5 s, section 6.1 of its paper) has
	// passed since the last handshake message, it sends none. greetFor is when it leaves it to data.
	greetAgain = 5 * time.Second
	greetFor   = 30 * time.Second
	// eagerPeers is the largest network whose peers all keep a path warm without traffic between them: 64
	// peers at a heartbeat in 15 s are four small packets a second. Larger ones find a path when they talk.
	eagerPeers = 64
)

// meshConfig is what a mesh is made of.
type meshConfig struct {
	Key      key.NodePrivate
	Server   string // its URL
	Settings Settings
	Device   *device
	StateDir string
	Links    []string       // names of interfaces; none: those that lead somewhere
	Metrics  map[string]int // of links by the names of their interfaces: as in Config
	Logger   *slog.Logger
	// Say is called with what the coordinator should know, on every change of it; NetworkChanged when the
	// connection to it may have gone without a word.
	Say            func(wire.Update)
	NetworkChanged func()
}

// A mesh is the running network: see the package comment. All fields below calls are its goroutine's alone.
type mesh struct {
	cfg    meshConfig
	log    *slog.Logger
	engine *engine.Engine
	calls  chan func(now time.Time)
	frames chan frame
	done   chan struct{}

	silences chan silence

	netmap    weft.NetworkMap
	peers     map[weft.NodeID]*peer
	relays    map[weft.RelayID]*relayLink
	links     links
	local     []weft.Candidate
	session   uint32    // of wire.Candidates
	watchAt   time.Time // of the next comparison of traffic
	activeAt  time.Time // of the last traffic
	names     *names
	plain     plain
	enforced  enforcement
	routing   routing
	portal    portal
	streams   streamDialer
	problems  map[string]string // by what they are about
	pings     map[wire.TxID]chan<- pingAnswer
	budget    *path.Budget // of all agents together
	spares    spares
	spread    spread
	mapped    portMaps
	suspected time.Time    // when it was last asked where this node is seen because a way was left
	long      atomic.Int32 // frames that wait and are longer than maxFrame
}

// A frame is a datagram that the engine handed over, copied.
type frame struct {
	via   weft.Via // of a relayed frame; Method is NoMethod for what came to a socket
	link  weft.LinkID
	from  netip.AddrPort
	src   weft.NodeID // of a relayed frame
	class wire.Class
	n     int
	b     *[maxFrame]byte
	long  []byte // in place of b
}

// newMesh makes the mesh for a map and starts its sockets; run does the rest.
func newMesh(cfg meshConfig, m weft.NetworkMap) (*mesh, error) {
	me := &mesh{
		cfg: cfg, log: cfg.Logger,
		calls: make(chan func(time.Time)), frames: make(chan frame, framesQueued), done: make(chan struct{}),
		silences: make(chan silence, silencesQueued),
		peers:    map[weft.NodeID]*peer{}, relays: map[weft.RelayID]*relayLink{},
		problems: map[string]string{}, pings: map[wire.TxID]chan<- pingAnswer{},
		session: randomSession(), budget: path.NewBudget(0),
		spares: newSpares(), links: links{named: cfg.Links},
	}
	if _, err := host.AllowFiles(filesWanted); err != nil {
		me.log.Warn("the hardest NATs may not be passed", "error", err)
	}
	e, err := engine.New(engine.Config{
		Key: cfg.Key, Self: m.Self.ID, Device: cfg.Device.TUN, Port: cfg.Settings.Port, AnyPortIfTaken: true,
		MTU: cfg.Device.mtu, Handler: me, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	me.engine, me.links.tcp = e, me.newTCP(m.Self.ID)
	me.names = newNames(cfg)
	return me, nil
}

// run is the mesh's goroutine: until ctx ends, and then it takes everything down again.
func (me *mesh) run(ctx context.Context, m weft.NetworkMap) {
	defer close(me.done)
	defer me.engine.Close()
	defer me.names.close()
	defer me.closePlain()
	defer me.closeRoutes()
	defer me.closePortal()
	me.streams, me.links.ctx = streamDialer{ctx: ctx, mesh: me}, ctx
	defer me.links.tcp.Close()

	var links <-chan struct{}
	if l, err := host.WatchLinks(ctx); err != nil {
		me.problem("links", fmt.Sprintf("changes of this machine's network are not seen at once: %v", err))
	} else {
		links = l
	}
	carriers, err := host.WatchCarriers(ctx)
	if err != nil {
		me.log.Debug("interfaces that go down are noticed late", "error", err)
	}
	if !me.cfg.Settings.NoPortMap {
		defer me.mapped.start(ctx, me)()
	}
	me.setMap(time.Now(), m)
	me.gatherLinks(time.Now())
	me.gatherLocal(time.Now())
	if err := me.engine.Up(); err != nil {
		me.problem("engine", err.Error())
	}
	me.setPortal(time.Now(), me.cfg.Settings.Portal.orNone())
	me.serveTools(ctx)

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			for _, r := range me.relays {
				r.close()
			}
			return
		case call := <-me.calls:
			call(time.Now())
		case f := <-me.frames:
			now := time.Now()
			me.take(now, f)
			for range len(me.frames) { // those that came with it, before any timer
				me.take(now, <-me.frames)
			}
		case s := <-me.silences:
			me.takeSilence(time.Now(), s)
		case c, ok := <-carriers:
			if !ok {
				carriers = nil
				continue
			}
			me.takeCarrier(time.Now(), c)
		case _, ok := <-links:
			if !ok {
				links = nil
			}
			me.networkChanged(time.Now())
		case <-timer.C:
		}
		timer.Reset(time.Until(me.work(time.Now())))
	}
}

// ask has f run on the mesh's goroutine and waits for it; false means that the mesh ended first.
func (me *mesh) ask(ctx context.Context, f func(now time.Time)) bool {
	ran := make(chan struct{})
	select {
	case me.calls <- func(now time.Time) { f(now); close(ran) }:
		<-ran
		return true
	case <-me.done:
	case <-ctx.Done():
	}
	return false
}

// post has f run on the mesh's goroutine, and does not wait for it to have run.
func (me *mesh) post(f func(now time.Time)) {
	select {
	case me.calls <- f:
	case <-me.done:
	}
}

// work does all that is due and returns when the next thing is.
func (me *mesh) work(now time.Time) time.Time {
	next := now.Add(time.Minute)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	if !now.Before(me.watchAt) {
		me.watch(now)
	}
	sooner(me.watchAt)
	for _, r := range me.relays {
		sooner(me.pollRelay(now, r))
	}
	for _, l := range me.links.list {
		at, changed := l.reflexive.Poll(now, func(to netip.AddrPort, packet []byte) {
			me.engine.WriteTo(l.ID, to, packet) // lost is lost: STUN asks again
		})
		if changed {
			me.gatherLocal(now)
		}
		sooner(at)
	}
	if at := me.links.lookAt; !at.IsZero() && !now.Before(at) {
		me.links.lookAt = time.Time{}
		me.networkChanged(now)
	}
	sooner(me.links.lookAt)
	sooner(me.pollAsks(now))
	sooner(me.pollPortal(now))
	for _, p := range me.peers {
		if p.due || !p.next.IsZero() && !now.Before(p.next) {
			me.poll(now, p)
		}
		sooner(p.next)
		if p.due { // it was told something while it was polled
			next = now
		}
		if !p.greet.IsZero() && !now.Before(p.greet) {
			me.greet(now, p)
		}
		sooner(p.greet)
		if !p.locate.IsZero() && !now.Before(p.locate) {
			me.locate(now, p)
		}
		sooner(p.locate)
	}
	if next.Before(now) {
		return now
	}
	return next
}

// watch compares traffic with what the peers acknowledged.
func (me *mesh) watch(now time.Time) {
	for _, p := range me.peers {
		me.observe(now, p)
	}
	me.watchRouters(now)
	me.hearGuests(now)
	me.spreadRelays(now)
	if now.Sub(me.activeAt) < watchLinger {
		me.watchAt = now.Add(watchFast)
	} else {
		me.watchAt = now.Add(watchSlow)
	}
}

// HandleDatagram takes what the engine got that is not WireGuard. It is called from the engine's goroutines.
func (me *mesh) HandleDatagram(link weft.LinkID, from netip.AddrPort, class wire.Class, b []byte) {
	me.hand(frame{link: link, from: from, class: class}, b)
}

// HandleRelayed takes a peer frame that came through a relay.
func (me *mesh) HandleRelayed(via weft.Via, src weft.NodeID, b []byte) {
	me.hand(frame{via: via, src: src, class: wire.ClassWeft}, b)
}

// Active hears that data flows to or from a peer that was idle.
func (me *mesh) Active(weft.NodeID) {
	select {
	case me.frames <- frame{}: // an empty frame only wakes
	default:
	}
}

func (me *mesh) hand(f frame, b []byte) {
	if len(b) == 0 {
		return
	}
	if len(b) > maxFrame {
		me.handLong(f, b)
		return
	}
	f.b = frameBuffers.Get().(*[maxFrame]byte)
	f.n = copy(f.b[:], b)
	select {
	case me.frames <- f:
	default:
		frameBuffers.Put(f.b)
	}
}

// take handles one frame.
func (me *mesh) take(now time.Time, f frame) {
	if f.long != nil {
		me.takeLong(now, f)
		return
	}
	if f.b == nil {
		me.activeAt = now
		if me.watchAt.After(now.Add(watchFast)) {
			me.watchAt = now
		}
		return
	}
	defer frameBuffers.Put(f.b)
	b := f.b[:f.n]
	if f.class == wire.ClassSTUN && f.link >= path.FirstSpare {
		me.takeAnswer(now, f.link, f.from, b)
		return
	}
	if f.class == wire.ClassSTUN {
		if l := me.links.find(f.link); l != nil {
			if _, changed := l.reflexive.Handle(now, b, f.from); changed {
				me.gatherLocal(now)
			}
		}
		return
	}
	switch kind, _ := wire.KindOf(b); {
	case kind == wire.KindPeer:
		me.takePeerFrame(now, f, b)
	case f.via.Method == weft.NoMethod && slices.Contains(relayKinds, kind):
		me.takeRelayFrame(now, f.link, f.from, b)
	}
}

// relayKinds are what relays say to a node.
var relayKinds = []wire.Kind{wire.KindChallenge, wire.KindBound, wire.KindRefused, wire.KindLocated, wire.KindProbed}

// setMap makes the mesh be what the map says.
func (me *mesh) setMap(now time.Time, m weft.NetworkMap) {
	first := me.netmap.Self.ID == 0
	old := me.netmap
	me.netmap = m
	me.names.set(me.named(m))
	if first || !slices.Equal(old.Self.Addrs, m.Self.Addrs) || !slices.Equal(old.Ranges, m.Ranges) || old.Service != m.Service || old.Domain != m.Domain {
		me.configureLink()
	}
	me.setRelays(now)
	me.setPeers(now)
	me.applyRoutes()
}

// configureLink gives the overlay's interface its addresses and routes.
func (me *mesh) configureLink() {
	sentence := ""
	if err := me.cfg.Device.configure(me.netmap); err != nil {
		sentence = err.Error()
	}
	me.problem("link", sentence)
	me.names.start(me.netmap)
}

// networkChanged looks at everything anew: an interface came, went, or has another address.
func (me *mesh) networkChanged(now time.Time) {
	me.checkPortal(now)
	links := me.gatherLinks(now)
	me.applyRoutes() // this machine may be in other networks now
	if !me.gatherLocal(now) && !links {
		return // a route or an address that is nothing to us: the overlay's own, mostly
	}
	me.log.Info("this machine's network changed")
	me.names.look() // a DHCP client rewrites resolv.conf on a new network
	me.cfg.NetworkChanged()
	if !me.links.apart {
		me.links.list[0].moved(now)
	}
	for _, r := range me.relays {
		r.recheck(now)
	}
	me.mapped.recheck()
	me.dropAsks(now, nil)
	for _, p := range me.peers {
		p.agent.NetworkChanged(now)
		p.locateSoon(now)
		p.due = true
	}
}

// gatherLocal collects where this node may be reached, and tells everybody if that changed.
func (me *mesh) gatherLocal(now time.Time) (changed bool) {
	ifaces, err := me.interfaces()
	if err != nil {
		me.problem("interfaces", err.Error())
		return false
	}
	me.problem("interfaces", "")
	var static []weft.Candidate
	for _, a := range me.cfg.Settings.Endpoints {
		static = append(static, weft.Candidate{Addr: a, Kind: weft.Static, Link: me.links.first()})
	}
	me.listenTCP()
	local := gather.Merge(wire.MaxCandidates, static, me.mapped.candidates(me), me.hosts(ifaces), me.reflexives())
	for i := range local {
		local[i].TCP = me.takesTCP(local[i])
	}
	if slices.Equal(local, me.local) {
		return false
	}
	me.local = local
	me.log.Debug("reachable at", "candidates", local)
	for _, p := range me.peers {
		p.agent.SetTCP(now, me.tcpUse())
		p.agent.SetLocal(now, local)
		p.due = true
	}
	me.sayUpdate()
	return true
}

func (me *mesh) sayUpdate() {
	me.cfg.Say(wire.Update{Candidates: me.local, HomeRelay: me.homeRelay(), NAT: me.mapping().String(), Heard: me.plain.heard,
		Routes: me.cfg.Settings.advertised()})
}

// problem notes a sentence about something, or that it is well again.
func (me *mesh) problem(about, sentence string) {
	switch {
	case sentence == "":
		delete(me.problems, about)
	case me.problems[about] != sentence:
		me.problems[about] = sentence
		me.log.Warn(sentence)
	}
}
