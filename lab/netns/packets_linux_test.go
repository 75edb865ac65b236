package netns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft/lab/vnet"
)

// Who counts packets by their beginnings learns how long each was, and waits for none.
func TestTheHeadsOfPacketsTellHowLongTheyAre(t *testing.T) {
	t.Parallel()
	_, b, legs := offices(t, vnet.LinkConfig{})
	p, err := b.OpenHeads(legs[0][1].Name())
	if err != nil {
		t.Fatal(err)
	}
	near, far := between(t, legs[0])
	to := netip.AddrPortFrom(legs[0][1].Addr(), 7000)
	want := []int{}
	for i := range 2*headsAtOnce + 3 {
		size := 1 + i*7
		text := strings.Repeat("a", size)
		near.send(to, text)
		far.expect(text)
		want = append(want, size)
	}
	const before = 10 + 14 + 20 + 8 // headers: virtio-net's, Ethernet's, IPv4's, UDP's
	got := []int{}
	collect := func(head []byte, size int) {
		if len(head) != min(size, HeadSize) {
			t.Errorf("%d bytes of a packet of %d", len(head), size)
		}
		if len(head) > before && head[10+12] == 8 && head[10+13] == 0 && head[10+14+9] == 17 {
			got = append(got, size-before)
		}
	}
	if err := p.Heads(collect); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("packets of %v bytes, not %v", got, want)
	}
	got = nil
	if err := p.Heads(collect); err != nil || len(got) > 0 {
		t.Errorf("packets that were counted come again: %v, %v", got, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if p.Heads(collect) == nil {
		t.Error("what is closed gives packets")
	}
}
