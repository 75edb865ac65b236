package netstack

import (
	"bytes"
	"log/slog"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"weft/engine"
	"weft/engine/segment"
)

// FuzzWhatTheEngineWrites has one stack take whatever comes, with whatever header in front: it must not panic, and must
// go on to answer.
func FuzzWhatTheEngineWrites(f *testing.F) {
	f.Add(bare(icmpEcho(addrB4, addrA4)))
	f.Add(bare(tcpData(addrB4, addrA4, 1000)))
	f.Add(bare(udpData(addrB4, addrA4, 9, []byte("payload"))))
	f.Add(tcpSuper(addrB4, addrA4, 5000))
	f.Add(tcpSuper(addrB4, netip.MustParseAddr("100.64.0.9"), 5000))
	f.Add(superUDP(addrB4, addrA4, 9, make([]byte, 3000), 1000))
	f.Add(superUDP(addrB4, addrA4, 9, make([]byte, 3000), 0))
	six := bare(make([]byte, 60))
	six[segment.HeaderSize], six[segment.HeaderSize+6] = 0x60, 6
	f.Add(six)
	f.Add([]byte{})
	f.Add(make([]byte, segment.HeaderSize+1))
	dev, n, err := New([]netip.Addr{addrA4, addrA6}, engine.MTU, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { dev.Close() })
	if err := n.stack.SetForwardingDefaultAndAllNICs(ipv4.ProtocolNumber, true); err != nil {
		f.Fatal(err)
	}
	q := dev.Queues()[0]
	buf := make([]byte, engine.ReadSize)
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = q.Write(bytes.Clone(b))
		_ = q.Write(bare(icmpEcho(addrB4, addrA4)))
		for {
			size, err := q.TryRead(buf)
			if err != nil || size == 0 {
				t.Fatalf("no answer to an echo request: %v", err)
			}
			if p := buf[segment.HeaderSize:size]; len(p) > 20 && p[0] == 0x45 && p[9] == 1 && p[20] == 0 {
				return
			}
		}
	})
}
