package path

import (
	"cmp"
	"math"
	"slices"

	"weft"
)

// A cell is the best way between one link of ours and one of the peer's, as far as ways do carry packets.
type cell struct {
	ours, theirs weft.LinkID
	way          *pair
	metric       int
	cost         int64 // less is better
	held         bool  // it is to be chosen whatever else there is
}

// impossible is the cost of two links between which there is no way: more than all others together.
const impossible = math.MaxInt64 / 64

// A cover is a choice of cells, and the links that they are of.
type cover struct {
	cells        []cell
	ours, theirs []weft.LinkID
}

func (c *cover) take(x cell) {
	c.cells = append(c.cells, x)
	if !slices.Contains(c.ours, x.ours) {
		c.ours = append(c.ours, x.ours)
	}
	if !slices.Contains(c.theirs, x.theirs) {
		c.theirs = append(c.theirs, x.theirs)
	}
}

// worth compares two choices: positive if c uses more links than o, or as many of lower metrics, or of lower cost by so
// much that it is felt.
func (c *cover) worth(o *cover) int {
	sums := func(c *cover) (metrics int, cost int64) {
		for _, x := range c.cells {
			metrics, cost = metrics+x.metric, cost+x.cost
		}
		return metrics, cost
	}
	m, cost := sums(c)
	n, other := sums(o)
	felt := 0
	if len(c.cells) == len(o.cells) && cost*3/2+int64(keepMember) < other {
		felt = 1
	}
	return cmp.Or(cmp.Compare(len(c.ours)+len(c.theirs), len(o.ours)+len(o.theirs)), cmp.Compare(n, m), felt)
}

// shares reports whether a cell of the cover has a link that another has, too.
func (c *cover) shares(x cell) bool {
	return slices.ContainsFunc(c.cells, func(y cell) bool { return y.way != x.way && (y.ours == x.ours || y.theirs == x.theirs) })
}

// covers tells which of a cell's links the cover has.
func (c *cover) covers(x cell) (ours, theirs bool) {
	return slices.Contains(c.ours, x.ours), slices.Contains(c.theirs, x.theirs)
}

// match chooses the cells that together use as many links as there are: those of the lowest metric first, and of each metric
// first those that are held, then as many as share no link, then one for each link that is left, ours or not, unless later says that it is to be put off. No more than most are chosen, nor of one metric more than the side with more links has.
func match(cells []cell, most int, later func(x cell, ours bool) bool) (c cover) {
	slices.SortStableFunc(cells, func(x, y cell) int {
		return cmp.Or(cmp.Compare(x.metric, y.metric), cmp.Compare(x.cost, y.cost))
	})
	for len(cells) > 0 {
		n := len(cells)
		if i := slices.IndexFunc(cells, func(x cell) bool { return x.metric != cells[0].metric }); i > 0 {
			n = i
		}
		tier := cells[:n]
		cells = cells[n:]
		var whole cover // of all that this metric has
		for _, x := range tier {
			whole.take(x)
		}
		room := min(most, len(c.cells)+max(len(whole.ours), len(whole.theirs)))
		for _, x := range tier {
			if x.held && len(c.cells) < room {
				c.take(x)
			}
		}
		var free []cell
		for _, x := range tier {
			if ours, theirs := c.covers(x); !ours && !theirs {
				free = append(free, x)
			}
		}
		for _, x := range disjoint(free) {
			if len(c.cells) < room {
				c.take(x)
			}
		}
		for _, x := range tier {
			if ours, theirs := c.covers(x); ours != theirs && len(c.cells) < room && !later(x, !ours) {
				c.take(x)
			}
		}
	}
	return c
}

// disjoint chooses as many cells as share no link, and of all such choices the one that costs least: an assignment
// (Kuhn 1955, in the form that adds one row after the other by a shortest path).
func disjoint(cells []cell) (out []cell) {
	if len(cells) < 2 {
		return cells
	}
	var all cover
	for _, x := range cells {
		all.take(x)
	}
	rows, cols := all.ours, all.theirs
	n := max(len(rows), len(cols))
	at := make([]int, n*n) // one more than the cell's index; 0: none
	for i, x := range cells {
		at[slices.Index(rows, x.ours)*n+slices.Index(cols, x.theirs)] = i + 1
	}
	cost := func(row, col int) int64 {
		if i := at[row*n+col]; i > 0 {
			return cells[i-1].cost
		}
		return impossible / int64(n)
	}
	// Row and column 0 stand for none. rowOf is the row that has a column; u and v are the potentials.
	rowOf, u, v := make([]int, n+1), make([]int64, n+1), make([]int64, n+1)
	for row := 1; row <= n; row++ {
		rowOf[0] = row
		col := 0
		least, from, done := make([]int64, n+1), make([]int, n+1), make([]bool, n+1)
		for i := range least {
			least[i] = math.MaxInt64
		}
		for rowOf[col] != 0 {
			done[col] = true
			next, step := 0, int64(math.MaxInt64)
			for j := 1; j <= n; j++ {
				if done[j] {
					continue
				}
				if d := cost(rowOf[col]-1, j-1) - u[rowOf[col]] - v[j]; d < least[j] {
					least[j], from[j] = d, col
				}
				if least[j] < step {
					next, step = j, least[j]
				}
			}
			for j := 0; j <= n; j++ {
				if done[j] {
					u[rowOf[j]] += step
					v[j] -= step
				} else {
					least[j] -= step
				}
			}
			col = next
		}
		for col != 0 {
			rowOf[col] = rowOf[from[col]]
			col = from[col]
		}
	}
	for col := 1; col <= n; col++ {
		if i := at[(rowOf[col]-1)*n+col-1]; i > 0 {
			out = append(out, cells[i-1])
		}
	}
	return out
}
