package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/direct"
	"weft/key"
	"weft/path"
)

// What weft set says of TCP: docs/links.md. The default is to take connections and to make them where UDP does not get
// through. A node that takes none could be reached by nobody when it is UDP that is blocked, and who is told of a setting only
// when he is cut off learns of it too late; what is open to strangers for it answers nothing (package direct).
const (
	tcpAuto = "auto" // kept as ""
	tcpOff  = "off"
	tcpAll  = "all"
)

// TCPLinks are the interfaces at which TCP takes the place of UDP; nil where none are named.
func (s Settings) TCPLinks() []string {
	if s.TCP == "" || s.TCP == tcpOff || s.TCP == tcpAll {
		return nil
	}
	return strings.Split(s.TCP, ",")
}

// CheckTCP says what is wrong with a setting that somebody wants, if anything is.
func (s Settings) CheckTCP() error {
	for _, name := range s.TCPLinks() {
		if name == "" || len(name) > 15 || strings.ContainsAny(name, "/:% \t\n") || strings.Trim(name, ".") == "" {
			return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
				"tcp is auto, off, all, or names of interfaces with commas between, for example wwan0; %q names none", name)}
		}
	}
	return nil
}

// tcp is what connects by TCP, and why it cannot take connections.
type tcp struct {
	*direct.Connector
	sentence string
}

func (me *mesh) newTCP(self weft.NodeID) tcp {
	return tcp{Connector: direct.New(direct.Config{
		Self: self, Logger: me.log,
		Up:   func(c *direct.Conn) { me.fromConnection(func(now time.Time) { me.connected(now, c) }) },
		Down: func(c *direct.Conn) { me.fromConnection(func(now time.Time) { me.disconnected(now, c) }) },
		Deliver: func(c *direct.Conn, datagrams [][]byte) {
			me.engine.DeliverConnection(c.Via, c.Peer, datagrams)
		},
	})}
}

// fromConnection has f run on the mesh's goroutine, unless that is about to end: it then waits for the connections' own.
func (me *mesh) fromConnection(f func(now time.Time)) {
	select {
	case me.calls <- f:
	case <-me.links.ctx.Done():
	}
}

// listenTCP takes connections by the links that there are, at the port that each has for UDP.
func (me *mesh) listenTCP() {
	if me.cfg.Settings.TCP == tcpOff {
		return
	}
	devices := map[weft.LinkID]string{}
	for _, l := range me.links.list {
		devices[l.ID] = l.Device
	}
	if me.links.apart && len(me.links.named) == 0 {
		devices[0] = "" // interfaces that are no links
	}
	me.links.tcp.Unlisten(func(id weft.LinkID) bool { _, ok := devices[id]; return ok })
	sentence := ""
	for id, device := range devices {
		if err := me.links.tcp.Listen(id, device, me.engine.LinkPort(id), me.links.apart); err != nil {
			sentence = fmt.Sprintf("peers that UDP does not reach cannot connect by TCP: %v", err)
		}
	}
	if sentence != me.links.tcp.sentence {
		me.links.tcp.sentence = sentence
		me.log.Info("TCP connections of peers", "error", sentence)
	}
}

// takesTCP reports whether a peer may be able to connect to where this node may be reached: at an address of its own, where
// somebody arranged that it is reachable, and where a NAT kept the port, which may be one that passes everything on.
func (me *mesh) takesTCP(c weft.Candidate) bool {
	switch c.Kind {
	case weft.Host, weft.ServerReflexive:
		return c.Addr.Port() == me.engine.LinkPort(c.Link) && me.links.tcp.Listens(c.Link)
	case weft.Static:
		return me.links.tcp.Listens(c.Link)
	}
	return false
}

// tcpUse is what agents may use TCP for.
func (me *mesh) tcpUse() path.TCP {
	s := me.cfg.Settings
	use := path.TCP{Allowed: s.TCP != tcpOff, All: s.TCP == tcpAll}
	for _, name := range s.TCPLinks() {
		if id, ok := me.links.numbers[name]; ok {
			use.Instead = append(use.Instead, id)
		}
	}
	return use
}

// tcpPeers tells who may connect.
func (me *mesh) tcpPeers() {
	boxes := make(map[weft.NodeID]key.Box, len(me.peers))
	for id, p := range me.peers {
		boxes[id] = p.box
		for _, c := range p.tcp {
			me.engine.SetConnection(id, c.Via, c) // it may be new to the engine
		}
	}
	me.links.tcp.SetPeers(boxes)
}

// connected takes in a new connection.
func (me *mesh) connected(now time.Time, c *direct.Conn) {
	p := me.peers[c.Peer]
	if p == nil {
		c.Close()
		return
	}
	me.log.Debug("a TCP connection is up", "peer", p.node.Name, "way", me.viaName(c.Via), "dialed", c.Dialed)
	if was := len(p.tcp); was > 0 { // another of the same way is known to have ended, and is not the new one
		p.tcp = slices.DeleteFunc(p.tcp, func(o *direct.Conn) bool { return o.Via == c.Via })
		if len(p.tcp) < was {
			me.tellConnections(now, p)
		}
	}
	p.tcp = append(p.tcp, c)
	me.engine.SetConnection(c.Peer, c.Via, c)
	me.tellConnections(now, p)
}

// disconnected takes in that one has ended.
func (me *mesh) disconnected(now time.Time, c *direct.Conn) {
	p := me.peers[c.Peer]
	if p == nil || !slices.Contains(p.tcp, c) {
		return
	}
	me.log.Debug("a TCP connection has ended", "peer", p.node.Name, "way", me.viaName(c.Via), "why", c.Err())
	p.tcp = slices.DeleteFunc(p.tcp, func(o *direct.Conn) bool { return o == c })
	me.engine.SetConnection(c.Peer, c.Via, nil)
	me.tellConnections(now, p)
}

// tellConnections tells the agent which there are.
func (me *mesh) tellConnections(now time.Time, p *peer) {
	list := make([]path.Connection, 0, len(p.tcp))
	for _, c := range p.tcp {
		list = append(list, path.Connection{Via: c.Via, Far: c.Far, Dialed: c.Dialed})
	}
	p.agent.SetConnections(now, list)
	p.due = true
}

// connect does what an agent wants of connections.
func (me *mesh) connect(p *peer, dials []path.Dial, hang []weft.Via) {
	for _, d := range dials {
		device, id := me.device(d.Link), p.node.ID
		addrs := slices.Clone(d.Addrs)
		go func() {
			err := me.links.tcp.Dial(id, d.Link, device, addrs)
			me.post(func(now time.Time) { me.dialed(now, p, d.Link, d.Far, addrs, err) })
		}()
	}
	for _, via := range hang {
		if c := me.links.tcp.Find(p.node.ID, via); c != nil {
			c.Close()
		}
	}
}

// dialed takes in what became of a Dial.
func (me *mesh) dialed(now time.Time, p *peer, link, far weft.LinkID, addrs []netip.AddrPort, err error) {
	if err != nil {
		me.log.Debug("no TCP connection", "peer", p.node.Name, "addresses", addrs, "link", me.device(link), "error", err)
	}
	p.agent.Dialed(now, link, far)
	p.due = true
}
