package control

import (
	"iter"
	"math/bits"
)

// A tree is a list of things by their number that is never changed: set and delete return another tree, which
// shares all but one path with the old one. A snapshot can so be kept for as long as somebody reads it, and the
// next one costs the same however large the network is. The zero tree is empty.
type tree[T any] struct {
	root  *branch[T]
	depth int // of the leaves below root
	size  int
}

// fanBits is how many bits of a number choose a way: 32 ways, so that a path through a network of 1,000 is two
// branches, and copying it 500 bytes.
const fanBits = 5

const fan = 1 << fanBits

// A branch has next or, at depth 0, leaf.
type branch[T any] struct {
	present uint32 // bit i: way i leads somewhere
	next    *[fan]*branch[T]
	leaf    *[fan]T
}

func (t tree[T]) len() int { return t.size }

// get returns what is at a number.
func (t tree[T]) get(id uint32) (v T, ok bool) {
	b := t.root
	if b == nil || uint64(id)>>(fanBits*(t.depth+1)) != 0 {
		return v, false
	}
	for d := t.depth; ; d-- {
		w := way(id, d)
		if b.present&(1<<w) == 0 {
			return v, false
		}
		if d == 0 {
			return b.leaf[w], true
		}
		b = b.next[w]
	}
}

func way(id uint32, depth int) uint32 { return uint32(uint64(id)>>(fanBits*depth)) % fan }

// set returns a tree with v at a number.
func (t tree[T]) set(id uint32, v T) tree[T] {
	if t.root == nil {
		t.depth = 0
	}
	for uint64(id)>>(fanBits*(t.depth+1)) != 0 {
		t.depth++
		if t.root != nil {
			t.root = &branch[T]{present: 1, next: &[fan]*branch[T]{0: t.root}}
		}
	}
	var added bool
	t.root, added = t.root.set(id, t.depth, v)
	if added {
		t.size++
	}
	return t
}

func (b *branch[T]) set(id uint32, depth int, v T) (_ *branch[T], added bool) {
	w := way(id, depth)
	c := new(branch[T])
	if b != nil {
		c.present = b.present
	}
	added = c.present&(1<<w) == 0
	c.present |= 1 << w
	if depth == 0 {
		c.leaf = new([fan]T)
		if b != nil {
			*c.leaf = *b.leaf
		}
		c.leaf[w] = v
		return c, added
	}
	c.next = new([fan]*branch[T])
	if b != nil {
		*c.next = *b.next
	}
	c.next[w], added = c.next[w].set(id, depth-1, v)
	return c, added
}

// delete returns a tree without a number.
func (t tree[T]) delete(id uint32) tree[T] {
	if _, ok := t.get(id); !ok {
		return t
	}
	t.root = t.root.delete(id, t.depth)
	t.size--
	return t
}

// delete copies a branch that has the number; of one that has nothing else there is nothing left.
func (b *branch[T]) delete(id uint32, depth int) *branch[T] {
	w := way(id, depth)
	c := &branch[T]{present: b.present}
	if depth == 0 {
		leaf := *b.leaf
		var none T
		leaf[w] = none
		c.leaf = &leaf
		c.present &^= 1 << w
	} else {
		next := *b.next
		next[w] = b.next[w].delete(id, depth-1)
		c.next = &next
		if next[w] == nil {
			c.present &^= 1 << w
		}
	}
	if c.present == 0 {
		return nil
	}
	return c
}

// all runs over the tree in the order of the numbers.
func (t tree[T]) all() iter.Seq2[uint32, T] {
	return func(yield func(uint32, T) bool) {
		if t.root != nil {
			t.root.all(0, t.depth, yield)
		}
	}
}

func (b *branch[T]) all(base uint32, depth int, yield func(uint32, T) bool) bool {
	for ways := b.present; ways != 0; ways &= ways - 1 {
		w := uint32(bits.TrailingZeros32(ways))
		id := base | w<<(fanBits*depth)
		if depth == 0 {
			if !yield(id, b.leaf[w]) {
				return false
			}
		} else if !b.next[w].all(id, depth-1, yield) {
			return false
		}
	}
	return true
}
