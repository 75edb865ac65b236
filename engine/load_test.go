package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"

	"weft/host"
	"weft/key"
	"weft/wireguard"
)

// withCookie is an initiation whose MAC2 is right for an address (sections 5.4.4 and 5.4.7).
func withCookie(secret wireguard.Key, from netip.AddrPort) []byte {
	mac := func(key, b []byte) []byte {
		h, _ := blake2s.New128(key)
		h.Write(b)
		return h.Sum(nil)
	}
	ip := from.Addr().As16()
	cookie := mac(secret[:], binary.BigEndian.AppendUint16(ip[:], from.Port()))
	msg := make([]byte, wireguard.InitiationSize-16, wireguard.InitiationSize)
	msg[0] = wireguard.TypeInitiation
	return append(msg, mac(cookie, msg)...)
}

func TestWhatIsRefusedBeforeItsMACIsMadeWouldNotBeAdmittedAfterIt(t *testing.T) {
	var l load
	public, secret := wireguard.Key{1}, wireguard.Key{2}
	sieve, rng := wireguard.NewSieve(public), rand.New(rand.NewPCG(1, 2))
	l.publish(secret)
	l.set(1)
	var senders []netip.AddrPort
	for i := range 4 {
		senders = append(senders, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(i+1)))
	}
	refused, passed, late := 0, 0, 0
	for now := int64(2); now < 20*int64(time.Second); now += rng.Int64N(int64(4 * time.Millisecond)) {
		if now < 10*int64(time.Second) {
			l.set(now)
		}
		from := senders[rng.IntN(len(senders))]
		msg := make([]byte, wireguard.InitiationSize)
		switch rng.IntN(4) {
		case 0:
			msg = withCookie(secret, from)
		case 1:
			msg = withCookie(wireguard.Key{3}, from)
		case 2:
			msg = msg[:wireguard.CookieReplySize]
		}
		loaded := l.is(now)
		no := l.refuses(now, from, msg)
		switch admitted := l.admits(now, sieve, from, msg); {
		case no && admitted:
			t.Fatalf("a message of %d bytes with MAC2 %v is refused at %d and would be admitted", len(msg), wireguard.HasMAC2(msg), now)
		case no && !loaded && len(msg) != wireguard.CookieReplySize:
			t.Fatalf("refused at %d without load", now)
		case no:
			refused++
		case admitted:
			passed++
		default:
			late++
		}
	}
	if refused < 1000 || passed < 1000 || late < 100 {
		t.Errorf("%d refused, %d admitted, %d refused by their MACs", refused, passed, late)
	}
}

func TestToRefuseTakesNothingOfAShareAndIsLoad(t *testing.T) {
	var l load
	sieve, msg := wireguard.NewSieve(wireguard.Key{1}), make([]byte, wireguard.InitiationSize)
	from, secret := netip.MustParseAddrPort("192.0.2.1:1"), wireguard.Key{2}
	l.publish(secret)
	l.set(1)
	for range 1000 {
		if l.refuses(2, from, msg) {
			t.Fatal("refused before anything was admitted")
		}
	}
	for l.admits(2, sieve, from, msg) {
	}
	if !l.refuses(2, from, msg) {
		t.Error("not refused when the share is used up")
	}
	if l.refuses(2, from, withCookie(secret, from)) || !l.admits(2, sieve, from, withCookie(secret, from)) {
		t.Error("who has a cookie suffers from who has none")
	}
	second := int64(time.Second)
	for at := second / 100; at < 3*second; at += second / 2000 {
		if !l.refuses(at, from, msg) {
			l.admits(at, sieve, from, msg)
		}
	}
	if !l.is(3 * second) {
		t.Error("a flood that is refused is no load")
	}
}

// strangers are what somebody sends who has no peer's key, a batch of 32 messages of which each is from another port.
func strangers(t testing.TB) (n *node, reads []host.UDPRead, messages map[string][]byte) {
	n, _ = quietNode(t)
	x := &attacker{b: n, rng: rand.NewChaCha8([32]byte{3})}
	valid := x.initiations(t, key.NewPrivate[key.Node](), 1)[0]
	other := append([]byte(nil), valid...)
	other[len(other)-17]++ // of MAC1
	madeUp := append([]byte(nil), valid...)
	madeUp[len(madeUp)-1]++ // of MAC2
	n.Engine.control.load.publish(wireguard.Key{5})
	return n, make([]host.UDPRead, host.UDPBatch), map[string][]byte{
		"an initiation": valid, "an initiation without our key": other, "an initiation with a cookie made up": madeUp, "data": transport(100, 9),
	}
}

// flooded has a batch come under load.
func flooded(n *node, reads []host.UDPRead, msg []byte, port int) {
	n.Engine.control.load.set(n.Engine.now())
	for i := range reads {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(port+i))
		reads[i] = host.UDPRead{Data: msg, Segment: len(msg), From: from}
	}
	n.Engine.receives(reads)
}

func TestStrangersHaveNothingAllocated(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools allocate")
	}
	n, reads, messages := strangers(t)
	for kind, msg := range messages {
		if kind == "an initiation with a cookie made up" {
			continue // a MAC of its own is made
		}
		port := 0
		if got := leastAllocs(func() { flooded(n, reads, msg, port); port += len(reads) }); got != 0 {
			t.Errorf("%d of %s allocate %v times", len(reads), kind, got)
		}
	}
}

// BenchmarkAStranger is what one datagram of a flood takes of who reads it, but for the kernel's part.
func BenchmarkAStranger(b *testing.B) {
	n, reads, messages := strangers(b)
	for kind, msg := range messages {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i += len(reads) {
				flooded(n, reads, msg, i)
			}
		})
	}
}
