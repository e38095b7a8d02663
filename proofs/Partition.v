(* Partition.v - a partition of work deals every item exactly once.

   A partition of the items 0 <= x < T over the workers 0 <= b < W is a pair of functions: the
   number of items of a worker, and the number of its i-th item. exactly_once says that each
   item number below T belongs to one pair (worker, i) and to no other, and that a worker's
   items are all below T.

     contiguous         item T*b/W + i
     weighted           the same with weights of the workers in place of b and W
     strided            item b + i*W
     blocked_strided    item (i/B*W + b)*B + i mod B

   These are the partitions of lua/work.lua, proved for all T >= 0 and W >= 1.
   lua/coq.lua prints a schedule's own formulas, from the objects that its kernel text comes from,
   and applies these theorems to them by exactly_once_same: the exported formulas are proved equal
   to the ones of this file.

   Division is floor division on non-negatives, as in C and Lua. No axioms. *)

Require Import ZArith Lia.
Open Scope Z_scope.

Ltac Zify.zify_post_hook ::= Z.to_euclidean_division_equations.

Definition exactly_once (T W : Z) (count : Z -> Z) (item : Z -> Z -> Z) : Prop :=
  (forall b i, 0 <= b < W -> 0 <= i < count b -> 0 <= item b i < T) /\
  (forall x, 0 <= x < T -> exists b i, 0 <= b < W /\ 0 <= i < count b /\ item b i = x) /\
  (forall b i b' i', 0 <= b < W -> 0 <= i < count b -> 0 <= b' < W -> 0 <= i' < count b' ->
     item b i = item b' i' -> b = b' /\ i = i').

(* ---- cuts: worker b has the items from start b up to start (b + 1) *)

Section Cuts.
  Variables (T W : Z) (start : Z -> Z).
  Hypothesis workers : 1 <= W.
  Hypothesis first : start 0 = 0.
  Hypothesis last : start W = T.
  Hypothesis ascending : forall a b, 0 <= a -> a <= b -> b <= W -> start a <= start b.

  Lemma cuts_owner : forall x, 0 <= x < T -> exists b, 0 <= b < W /\ start b <= x < start (b + 1).
  Proof.
    intros x bounds.
    assert (search : forall n, 0 <= n -> n <= W -> x < start n ->
      exists b, 0 <= b < n /\ start b <= x < start (b + 1)).
    { apply (natlike_ind (fun n => n <= W -> x < start n ->
        exists b, 0 <= b < n /\ start b <= x < start (b + 1))).
      - intros _ below. lia.
      - intros n positive induction most below.
        destruct (Z_lt_le_dec x (start n)) as [inside | outside].
        + destruct (induction ltac:(lia) inside) as [b [range found]].
          exists b. split; [lia | exact found].
        + exists n. split; [lia |]. replace (n + 1) with (Z.succ n) by lia. lia. }
    destruct (search W) as [b found]; [lia | lia | lia |].
    exists b. exact found.
  Qed.

  Theorem cuts_exactly_once :
    exactly_once T W (fun b => start (b + 1) - start b) (fun b i => start b + i).
  Proof.
    repeat split.
    - assert (start 0 <= start b) by (apply ascending; lia). lia.
    - assert (start (b + 1) <= start W) by (apply ascending; lia). lia.
    - intros x bounds. destruct (cuts_owner x bounds) as [b [range found]].
      exists b, (x - start b). lia.
    - destruct (Z.lt_trichotomy b b') as [less | [same | more]]; [| exact same |].
      + assert (start (b + 1) <= start b') by (apply ascending; lia). lia.
      + assert (start (b' + 1) <= start b) by (apply ascending; lia). lia.
    - destruct (Z.lt_trichotomy b b') as [less | [same | more]].
      + assert (start (b + 1) <= start b') by (apply ascending; lia). lia.
      + subst b'. lia.
      + assert (start (b' + 1) <= start b) by (apply ascending; lia). lia.
  Qed.
End Cuts.

(* ---- contiguous *)

Definition contiguous_start (T W b : Z) : Z := T * b / W.
Definition contiguous_count (T W b : Z) : Z :=
  contiguous_start T W (b + 1) - contiguous_start T W b.
Definition contiguous_item (T W b i : Z) : Z := contiguous_start T W b + i.

Theorem contiguous_exactly_once : forall T W, 0 <= T -> 1 <= W ->
  exactly_once T W (contiguous_count T W) (contiguous_item T W).
Proof.
  intros T W items workers. unfold contiguous_count, contiguous_item.
  apply cuts_exactly_once; unfold contiguous_start.
  - lia.
  - rewrite Z.mul_0_r. apply Z.div_0_l. lia.
  - apply Z.div_mul. lia.
  - intros a b _ order _. apply Z.div_le_mono; [lia | nia].
Qed.

(* ---- strided *)

Definition strided_count (T W b : Z) : Z := (T + W - 1 - b) / W.
Definition strided_item (T W b i : Z) : Z := b + i * W.

Lemma strided_below : forall T W b i, 0 <= b < W -> 0 <= i ->
  (i < strided_count T W b <-> strided_item T W b i < T).
Proof.
  intros T W b i worker number. unfold strided_count, strided_item. split; intro less.
  - assert (W * (i + 1) <= T + W - 1 - b); [| nia].
    apply Z.le_trans with (W * ((T + W - 1 - b) / W)).
    + apply Z.mul_le_mono_nonneg_l; lia.
    + apply Z.mul_div_le. lia.
  - apply Z.lt_le_trans with (i + 1); [lia |].
    apply Z.div_le_lower_bound; [lia | nia].
Qed.

Theorem strided_exactly_once : forall T W, 0 <= T -> 1 <= W ->
  exactly_once T W (strided_count T W) (strided_item T W).
Proof.
  intros T W items workers.
  assert (unique : forall b i b' i', 0 <= b < W -> 0 <= b' < W ->
    b + i * W = b' + i' * W -> b = b' /\ i = i').
  { intros b i b' i' worker worker' same.
    assert (residue : (b + i * W) mod W = (b' + i' * W) mod W) by (rewrite same; reflexivity).
    rewrite !Z.mod_add, !Z.mod_small in residue by lia.
    split; [exact residue | nia]. }
  split; [| split].
  - intros b i worker range. split.
    + unfold strided_item. nia.
    + apply strided_below; lia.
  - intros x bounds. exists (x mod W), (x / W).
    assert (worker : 0 <= x mod W < W) by (apply Z.mod_pos_bound; lia).
    assert (number : 0 <= x / W) by (apply Z.div_pos; lia).
    assert (same : strided_item T W (x mod W) (x / W) = x).
    { unfold strided_item. rewrite (Z.div_mod x W) at 3 by lia. lia. }
    repeat split; try lia.
    apply (strided_below T W (x mod W) (x / W)); lia.
  - intros b i b' i' worker _ worker' _ same. apply unique; assumption.
Qed.

(* ---- weighted: workers below h weigh w0, the others w1 *)

Definition weight (w0 w1 h b : Z) : Z := Z.min b h * w0 + Z.max 0 (b - h) * w1.
Definition weighted_start (w0 w1 h T W b : Z) : Z := T * weight w0 w1 h b / weight w0 w1 h W.
Definition weighted_count (w0 w1 h T W b : Z) : Z :=
  weighted_start w0 w1 h T W (b + 1) - weighted_start w0 w1 h T W b.
Definition weighted_item (w0 w1 h T W b i : Z) : Z := weighted_start w0 w1 h T W b + i.

Theorem weighted_exactly_once : forall w0 w1 h T W,
  1 <= w0 -> 1 <= w1 -> 1 <= h -> 0 <= T -> 1 <= W ->
  exactly_once T W (weighted_count w0 w1 h T W) (weighted_item w0 w1 h T W).
Proof.
  intros w0 w1 h T W positive0 positive1 half items workers.
  assert (all : 1 <= weight w0 w1 h W).
  { unfold weight. destruct (Z.le_gt_cases W h);
      [rewrite Z.min_l, Z.max_l by lia | rewrite Z.min_r, Z.max_r by lia]; nia. }
  unfold weighted_count, weighted_item.
  apply cuts_exactly_once; unfold weighted_start.
  - lia.
  - replace (weight w0 w1 h 0) with 0 by (unfold weight; rewrite Z.min_l, Z.max_l by lia; lia).
    rewrite Z.mul_0_r. apply Z.div_0_l. lia.
  - apply Z.div_mul. lia.
  - intros a b first order _. apply Z.div_le_mono; [lia |].
    apply Z.mul_le_mono_nonneg_l; [lia |]. unfold weight.
    assert (Z.min a h <= Z.min b h) by lia.
    assert (Z.max 0 (a - h) <= Z.max 0 (b - h)) by lia. nia.
Qed.

(* ---- blocked_strided: blocks of B items, dealt as strided deals single items *)

Definition blocked_strided_count (B T W b : Z) : Z :=
  T / (B * W) * B + Z.min (Z.max 0 (T mod (B * W) - b * B)) B.
Definition blocked_strided_item (B T W b i : Z) : Z := (i / B * W + b) * B + i mod B.

Lemma blocked_strided_below : forall B T W b i, 1 <= B -> 0 <= T -> 0 <= b < W -> 0 <= i ->
  (i < blocked_strided_count B T W b <-> blocked_strided_item B T W b i < T).
Proof.
  intros B T W b i block items worker number.
  unfold blocked_strided_count, blocked_strided_item.
  assert (cycle : 0 < B * W) by nia.
  pose proof (Z.div_mod T (B * W) ltac:(lia)) as split_total.
  pose proof (Z.mod_pos_bound T (B * W) cycle) as rest.
  pose proof (Z.div_mod i B ltac:(lia)) as split_item.
  pose proof (Z.mod_pos_bound i B ltac:(lia)) as inside.
  pose proof (Z.div_pos T (B * W) items cycle) as cycles.
  pose proof (Z.div_pos i B number ltac:(lia)) as blocks.
  set (q := T / (B * W)) in *. set (r := T mod (B * W)) in *.
  set (k := i / B) in *. set (j := i mod B) in *.
  clearbody q r k j. subst i. subst T.
  assert (shape : (k * W + b) * B + j = B * W * k + (b * B + j)) by ring.
  rewrite shape.
  assert (low : 0 <= b * B + j < B * W) by nia.
  destruct (Z.lt_trichotomy k q) as [less | [same | more]].
  - split; intros _; nia.
  - subst k. assert (0 <= b * B) by nia. split; intro below; lia.
  - split; intro below; exfalso; nia.
Qed.

Theorem blocked_strided_exactly_once : forall B T W, 1 <= B -> 0 <= T -> 1 <= W ->
  exactly_once T W (blocked_strided_count B T W) (blocked_strided_item B T W).
Proof.
  intros B T W block items workers.
  split; [| split].
  - intros b i worker range. split.
    + unfold blocked_strided_item.
      pose proof (Z.mod_pos_bound i B ltac:(lia)).
      pose proof (Z.div_pos i B ltac:(lia) ltac:(lia)). nia.
    + apply blocked_strided_below; lia.
  - intros x bounds.
    assert (worker : 0 <= x / B mod W < W) by (apply Z.mod_pos_bound; lia).
    pose proof (Z.mod_pos_bound x B ltac:(lia)) as inside.
    pose proof (Z.div_pos x B ltac:(lia) ltac:(lia)) as block_number.
    pose proof (Z.div_pos (x / B) W ltac:(lia) ltac:(lia)) as round.
    exists (x / B mod W), (x / B / W * B + x mod B).
    assert (outer : x / B / W * B + x mod B = x mod B + x / B / W * B) by ring.
    assert (same : blocked_strided_item B T W (x / B mod W) (x / B / W * B + x mod B) = x).
    { unfold blocked_strided_item.
      rewrite Z.div_add_l, (Z.div_small (x mod B) B), Z.add_0_r by lia.
      rewrite outer, Z.mod_add, (Z.mod_small (x mod B) B) by lia.
      pose proof (Z.div_mod x B ltac:(lia)). pose proof (Z.div_mod (x / B) W ltac:(lia)). nia. }
    assert (number : 0 <= x / B / W * B + x mod B) by nia.
    split; [exact worker |]. split; [| exact same].
    split; [exact number |].
    apply blocked_strided_below; [lia | lia | exact worker | exact number |].
    rewrite same. lia.
  - intros b i b' i' worker range worker' range' same. unfold blocked_strided_item in same.
    pose proof (Z.mod_pos_bound i B ltac:(lia)) as inside.
    pose proof (Z.mod_pos_bound i' B ltac:(lia)) as inside'.
    assert (blocks : i / B * W + b = i' / B * W + b' /\ i mod B = i' mod B).
    { apply (Z.div_mod_unique B); lia. }
    destruct blocks as [blocks places].
    assert (rounds : i / B = i' / B /\ b = b').
    { apply (Z.div_mod_unique W); lia. }
    destruct rounds as [rounds workers_same]. split; [exact workers_same |].
    rewrite (Z.div_mod i B), (Z.div_mod i' B) by lia. rewrite rounds, places. reflexivity.
Qed.

(* ---- instances *)

Lemma exactly_once_same : forall T W count item count' item',
  (forall b, 0 <= b < W -> count b = count' b) ->
  (forall b i, 0 <= b < W -> item b i = item' b i) ->
  exactly_once T W count' item' -> exactly_once T W count item.
Proof.
  intros T W count item count' item' counts items [inside [found unique]].
  split; [| split].
  - intros b i worker range. rewrite items by exact worker. rewrite counts in range by exact worker.
    apply inside; assumption.
  - intros x bounds. destruct (found x bounds) as [b [i [worker [range number]]]].
    exists b, i. rewrite counts, items by exact worker. auto.
  - intros b i b' i' worker range worker' range'.
    rewrite counts in range by exact worker. rewrite counts in range' by exact worker'.
    rewrite !items by assumption. apply unique; assumption.
Qed.

(* Two formulas over constants and few variables are equal: by computation, or by arithmetic
   when the exporter has cancelled a constant (T * b / W with W dividing T). *)
Ltac same_numbers := first [reflexivity | lia | nia].

Definition theorems := (contiguous_exactly_once,
  weighted_exactly_once,
  strided_exactly_once,
  blocked_strided_exactly_once).
Print Assumptions theorems.
