package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func testOverlay(iface, prefix string) Overlay {
	p := netip.MustParsePrefix(prefix)
	return Overlay{Interface: iface, Domain: iface + ".internal", Ranges: []netip.Prefix{p}, Server: p.Addr().Next()}
}

func announce(t *testing.T, dir string, o Overlay) *Announcement {
	t.Helper()
	a, err := announceIn(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestNetworksOfOneMachineKnowOfEachOtherForAsLongAsTheyLive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net")
	one, two := testOverlay("weft0", "100.64.0.0/10"), testOverlay("weft1", "10.99.0.0/16")
	a := announce(t, dir, one)
	b := announce(t, dir, two)
	expect := func(except string, want ...Overlay) {
		t.Helper()
		if diff := cmp.Diff(want, overlaysIn(dir, except), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(Overlay{}, "Named")); diff != "" {
			t.Errorf("besides %s (-want +got):\n%s", except, diff)
		}
	}
	expect("weft0", two)
	expect("weft1", one)
	two.Domain = "a.b"
	if err := b.Update(two); err != nil {
		t.Fatal(err)
	}
	expect("weft0", two)
	if _, err := announceIn(dir, testOverlay("weft1", "10.1.0.0/16")); err == nil || !strings.Contains(err.Error(), "--tun") {
		t.Errorf("two have the same interface: %v", err)
	}
	expect("weft0", two)
	b.Close()
	b.Close()
	expect("weft0")
	if b.Update(two) == nil {
		t.Error("one that is down is made known")
	}
	a.Close()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %s (%v)", namesIn(t, dir), err)
	}
}

func TestTwoNetworksOfOneMachineDoNotShareAddresses(t *testing.T) {
	dir := t.TempDir()
	announce(t, dir, testOverlay("weft0", "100.64.0.0/10"))
	_, err := announceIn(dir, testOverlay("weft1", "100.100.0.0/16"))
	if !errors.Is(err, ErrOverlap) || !strings.Contains(err.Error(), "weft0") || !strings.Contains(err.Error(), "--range") {
		t.Errorf("a range within another's: %v", err)
	}
	other := announce(t, dir, testOverlay("weft1", "10.99.0.0/16"))
	if err := other.Update(testOverlay("weft1", "100.64.0.0/10")); !errors.Is(err, ErrOverlap) {
		t.Errorf("a range that moves into another's: %v", err)
	}
	if got := overlaysIn(dir, "weft0"); len(got) != 1 || got[0].Ranges[0] != netip.MustParsePrefix("10.99.0.0/16") {
		t.Errorf("what was refused is known all the same: %v", got)
	}
}

func TestOfManyThatStartAtOnceWithTheSameAddressesOneIsLetIn(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for i := range 20 {
		all.Go(func() {
			if a, err := announceIn(dir, testOverlay("weft"+string(rune('a'+i)), "100.64.0.0/10")); err == nil {
				mu.Lock()
				in++
				mu.Unlock()
				t.Cleanup(a.Close)
			} else if !errors.Is(err, ErrOverlap) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if in != 1 {
		t.Errorf("%d were let in", in)
	}
}

func TestTheDirectoryMayGoWhileOthersComeAndStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			o := testOverlay(fmt.Sprint("weft", i), fmt.Sprintf("10.%d.0.0/16", i))
			for range 50 {
				a, err := announceIn(dir, o)
				if err != nil {
					t.Error(err)
					return
				}
				if err := a.Update(o); err != nil {
					t.Error(err)
				}
				a.Close()
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %s (%v)", namesIn(t, dir), err)
	}
}

// Some of many tries meet the directory when it goes between two steps of making and opening it.
func TestADirectoryThatGoesWhileItIsOpenedIsNoError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net")
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Mkdir(dir, 0o755)
				_ = os.Remove(dir)
			}
		}
	})
	gone := 0
	for until := time.Now().Add(30 * time.Second); gone < 20 && time.Now().Before(until); {
		f, err := openDir(dir)
		switch {
		case err == nil:
			f.Close()
		case errors.Is(err, fs.ErrNotExist):
			gone++
		default:
			t.Errorf("opened a directory that comes and goes: %v", err)
		}
	}
	close(stop)
	all.Wait()
	if gone == 0 {
		t.Error("the directory never went")
	}
}

func TestWhatAKilledDaemonAnnouncedIsNobodys(t *testing.T) {
	dir := t.TempDir()
	killed, err := announceIn(dir, testOverlay("weft0", "100.64.0.0/10"))
	if err != nil {
		t.Fatal(err)
	}
	killed.file.Close() // as the kernel does it
	if got := overlaysIn(dir, "weft1"); got != nil {
		t.Errorf("it is still there: %v", got)
	}
	announce(t, dir, testOverlay("weft1", "100.64.0.0/10"))
	left, err := announceIn(dir, testOverlay("weft2", "10.3.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	left.file.Close()
	again := announce(t, dir, testOverlay("weft0", "10.1.0.0/16"))
	again.Close()
	if names := namesIn(t, dir); names != "weft1.json" {
		t.Errorf("besides what is up there are %s", names)
	}
	for _, text := range []string{"", "{", `{"ranges":["x"]}`} { // damaged, and held by somebody
		f, err := os.Create(filepath.Join(dir, "odd.json"))
		if err != nil {
			t.Fatal(err)
		}
		held, err := announceIn(dir, testOverlay("odd", "10.2.0.0/16"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(text), 0); err != nil || f.Truncate(int64(len(text))) != nil {
			t.Fatal(err)
		}
		f.Close()
		if got := overlaysIn(dir, "weft1"); got != nil {
			t.Errorf("%q is taken for %v", text, got)
		}
		held.Close()
	}
}

func TestOfTwoNetworksOfOneDomainTheFirstKeepsItsNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net")
	one, two := testOverlay("weft1", "100.64.0.0/10"), testOverlay("weft0", "10.99.0.0/16")
	a := announce(t, dir, one)
	b := announce(t, dir, two)
	domain := map[string]string{"weft0": two.Domain, "weft1": one.Domain, "weft2": "third.internal"}
	expect := func(iface, namesake string) {
		t.Helper()
		if o, _ := namesakeIn(dir, iface, domain[iface]); o.Interface != namesake {
			t.Errorf("before %s there was %q of its domain, want %q", iface, o.Interface, namesake)
		}
	}
	update := func(x *Announcement, o Overlay) {
		t.Helper()
		if err := x.Update(o); err != nil {
			t.Fatal(err)
		}
		domain[o.Interface] = o.Domain
	}
	expect("weft0", "")
	expect("weft1", "")
	two.Domain = one.Domain
	domain["weft0"] = one.Domain // before the others are told
	expect("weft0", "weft1")
	update(b, two)
	expect("weft0", "weft1")
	expect("weft1", "")
	update(a, one) // which changes nothing
	expect("weft0", "weft1")
	expect("weft1", "")
	one.Domain = "other.internal"
	update(a, one)
	one.Domain = two.Domain // it comes back, and is the later one now
	update(a, one)
	expect("weft0", "")
	expect("weft1", "weft0")
	b.Close()
	expect("weft1", "")
	expect("weft2", "")
}
