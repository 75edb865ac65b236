// Package garbage is what strangers send to a port: noise, halves of what is sensible, lengths that lie, and nothing
// at all for a long time. Tests pour it over every port of a running weft and look whether it still serves.
//
// What is sent follows from a seed, but for keys. Each datagram and each connection is of one of three kinds: noise; something
// real - WireGuard, STUN, a weft frame, TLS, an HTTP request, an upgrade to a protocol of ours - that is cut
// somewhere; and something real with some bits turned.
package garbage

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"weft"
	"weft/key"
	"weft/stun"
	"weft/wire"
)

// maxDatagram is the longest UDP payload over IPv4, in bytes: 65535 less the headers.
const maxDatagram = 65507

// atOnce is how many strangers talk to a port at the same time.
const atOnce = 8

// listen is how long a stranger waits for an answer after what was said, and patience for anything, as that TLS
// begins. They bound the length of a shower.
const (
	listen   = 20 * time.Millisecond
	patience = 500 * time.Millisecond
)

// Dial connects to an address, as net.Dialer's DialContext does.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// A source draws garbage.
type source struct {
	*rand.Rand
	bytes  *rand.ChaCha8
	box    key.Box // of two keys that nobody knows
	ticket []byte  // signed by nobody
}

func newSource(seed uint64) *source {
	chacha := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	s := &source{Rand: rand.New(chacha), bytes: chacha}
	node := key.NewPrivate[key.Node]()
	var err error
	if s.box, err = wire.RelayBox(node, key.NewPrivate[key.Relay]().Public()); err != nil {
		panic("two fresh keys always agree: " + err.Error())
	}
	s.ticket = wire.SignTicket(nil, wire.Ticket{
		Node: 1, Network: [8]byte(s.noise(8)), Key: node.Public(), NotAfter: time.Now().Add(time.Hour),
	}, key.NewSigning())
	return s
}

func (s *source) noise(n int) []byte {
	b := make([]byte, n)
	s.bytes.Read(b)
	return b
}

// spoil cuts what is real, turns bits of it, or leaves it as it is.
func (s *source) spoil(b []byte) []byte {
	b = bytes.Clone(b)
	switch s.IntN(4) {
	case 0:
		return b[:s.IntN(len(b)+1)]
	case 1:
		return append(b, s.noise(s.IntN(64))...)
	case 2:
		for range 1 + s.IntN(4) {
			if len(b) > 0 {
				b[s.IntN(len(b))] ^= 1 << s.IntN(8)
			}
		}
	}
	return b
}

// datagram draws one.
func (s *source) datagram() []byte {
	switch s.IntN(10) {
	case 0:
		return nil
	case 1:
		return s.noise(s.IntN(64))
	case 2:
		return s.noise(1 + s.IntN(1500))
	case 3:
		return s.noise(maxDatagram - s.IntN(2))
	case 4, 5: // WireGuard: initiation, response, cookie, data, by their lengths
		kind := 1 + s.IntN(4)
		b := s.noise([]int{148, 92, 64, 32 + 16*s.IntN(80)}[kind-1])
		copy(b, []byte{byte(kind), 0, 0, 0})
		return s.spoil(b)
	case 6: // STUN, with attributes of any length
		b := stun.AppendBindingRequest(nil, stun.TransactionID(s.noise(12)), stun.Request{})
		for range s.IntN(20) {
			b = binary.BigEndian.AppendUint16(b, uint16(s.Uint32()))
			b = binary.BigEndian.AppendUint16(b, uint16(s.IntN(40)))
			b = append(b, s.noise(s.IntN(10)*4)...)
		}
		if s.IntN(2) == 0 {
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)-20))
		}
		return s.spoil(b)
	}
	return s.spoil(s.frame())
}

// frame draws a weft frame as it should be, from somebody whom nobody knows.
func (s *source) frame() []byte {
	nonce, cookie := [8]byte(s.noise(8)), [16]byte(s.noise(16))
	switch s.IntN(6) {
	case 0:
		return wire.AppendBind(nil, wire.Bind{Nonce: nonce, Cookie: cookie, Ticket: s.ticket}, s.box)
	case 1:
		return wire.AppendChallenge(nil, wire.Challenge{Nonce: nonce, Cookie: cookie})
	case 2:
		return wire.AppendBound(nil, wire.Bound{Nonce: nonce, Lifetime: time.Hour, Observed: netip.MustParseAddrPort("192.0.2.1:1")}, s.box)
	case 3:
		return wire.AppendRefused(nil, nonce, wire.RefusedRevoked)
	case 4:
		return append(wire.AppendData(nil, weft.NodeID(s.IntN(10))), s.noise(s.IntN(1400))...)
	}
	return wire.AppendPeer(nil, s.box, weft.NodeID(s.IntN(10)), wire.Ping{Path: uint16(s.Uint32()), Tx: wire.TxID(s.noise(len(wire.TxID{})))})
}

// UDP sends n datagrams to an address, and reads what comes back so that nothing waits.
func UDP(ctx context.Context, dial Dial, addr string, seed uint64, n int) error {
	c, err := dial(ctx, "udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	go io.Copy(io.Discard, c)
	s := newSource(seed)
	for i := range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.Write(s.datagram()) // refused is as good as sent: the port may be nobody's at this moment
		if i%64 == 63 {
			pause(ctx, time.Millisecond) // what overflows the socket is garbage to nobody
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// talk draws what a stranger says on a connection, and whether within TLS.
func (s *source) talk() (said []byte, inTLS bool) {
	inTLS = s.IntN(2) == 0
	switch s.IntN(11) {
	case 0:
		return nil, inTLS
	case 1:
		return s.noise(1 + s.IntN(4096)), inTLS
	case 2: // a record of TLS that says that it is long
		return append([]byte{0x16, 3, 1, 0xff, 0xff}, s.noise(s.IntN(2000))...), false
	case 3: // SOCKS5, SMTP, HTTP/2
		return s.spoil([][]byte{{5, 3, 0, 1, 2}, {5, 255}, []byte("EHLO x\r\n"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}[s.IntN(4)]), inTLS
	case 4: // a head without an end
		return []byte("GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", s.IntN(2000))), inTLS
	case 5: // a body without an end
		return []byte("POST /v1/up HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n" + strings.Repeat("x", 1<<16)), inTLS
	case 6: // a proxy's requests
		return s.spoil(fmt.Appendf(nil, "CONNECT %s:1 HTTP/1.1\r\nProxy-Authorization: Basic %s\r\n\r\n",
			strings.Repeat("x", s.IntN(300)), base64.StdEncoding.EncodeToString(s.noise(s.IntN(300))))), inTLS
	}
	path, proto := wire.ControlPath, wire.ControlProto
	if s.IntN(2) == 0 {
		path, proto = wire.RelayPath, wire.RelayProto
	}
	head := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n", path, proto)
	if s.IntN(3) == 0 {
		head = fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n", path, proto)
	}
	if s.IntN(2) == 0 { // Noise's first message, or something as long
		head = fmt.Appendf(head, "Weft-Handshake: %s\r\n", base64.RawURLEncoding.EncodeToString(s.noise(96)))
	}
	body := s.noise(s.IntN(3000))
	if s.IntN(2) == 0 { // frames of the relay's stream
		for range s.IntN(20) {
			body = wire.AppendStreamHeader(body, wire.StreamType(s.IntN(10)), s.IntN(200))
			body = append(body, s.noise(s.IntN(200))...)
		}
	}
	return append(s.spoil(append(head, "\r\n"...)), body...), inTLS
}

// TCP makes n connections to an address and says something on each; some are ended in the middle of TLS, some not
// at all before the context ends.
func TCP(ctx context.Context, dial Dial, addr string, seed uint64, n int) error {
	s := newSource(seed)
	places := make(chan struct{}, atOnce)
	var talking sync.WaitGroup
	defer talking.Wait()
	for range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c, err := dial(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		said, inTLS := s.talk()
		hold := s.IntN(8) == 0
		talk := func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			var to io.ReadWriter = c
			if inTLS {
				t := tls.Client(c, &tls.Config{InsecureSkipVerify: true}) // strangers take any
				if t.Handshake() != nil {
					return
				}
				to = t
			}
			to.Write(said)
			if hold {
				<-ctx.Done()
				return
			}
			c.SetReadDeadline(time.Now().Add(listen))
			io.Copy(io.Discard, io.LimitReader(to, 1<<20))
		}
		if hold {
			go talk()
			continue
		}
		places <- struct{}{}
		talking.Go(func() {
			talk()
			<-places
		})
	}
	return nil
}

// A Crowd is connections whose clients say next to nothing, slowly (slow loris).
type Crowd struct {
	stop  context.CancelFunc
	conns []net.Conn
	ended sync.WaitGroup
}

// Gather opens n connections to an address, each of which says a byte of a request now and then.
func Gather(ctx context.Context, dial Dial, addr string, n int) (*Crowd, error) {
	ctx, stop := context.WithCancel(ctx)
	g := &Crowd{stop: stop}
	for i := range n {
		c, err := dial(ctx, "tcp", addr)
		if err != nil {
			g.Close()
			return nil, err
		}
		g.conns = append(g.conns, c)
		say := []byte("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: " + strings.Repeat("x", 100))
		if i%2 == 1 {
			say = append([]byte{0x16, 3, 1, 0x10, 0}, make([]byte, 100)...)
		}
		g.ended.Go(func() {
			for _, b := range say[i%3:] { // some begin in the middle
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				pause(ctx, 200*time.Millisecond)
				if ctx.Err() != nil {
					return
				}
			}
			<-ctx.Done()
		})
	}
	return g, nil
}

// Close sends the crowd home.
func (g *Crowd) Close() {
	g.stop()
	for _, c := range g.conns {
		c.Close()
	}
	g.ended.Wait()
}
