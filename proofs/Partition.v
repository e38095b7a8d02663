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

Require Import ZArith List Bool Lia.
Import ListNotations.
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

  Lemma cuts_exactly_once :
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

(* Law contiguous_exactly_once: worker b of W has the items from T*b/W up to T*(b+1)/W: each item is
   one worker's, for every total T and every number of workers.
   Mirrors: gemm_m16_partition. *)
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

(* Law strided_exactly_once: worker b has the items b, b + W, b + 2W, ...: each item is one
   worker's.
   Mirrors: draft_head_partition, attn_pre. *)
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

(* Law weighted_exactly_once: workers below h weigh w0, the others w1, and each has its weight's
   part of the items in a row: each item is one worker's, for all weights, grids and totals.
   Mirrors: gemm_m16_wpart, m16_wsched. *)
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

Example weighted_exactly_once_used : exactly_once 3840 164 (weighted_count 1000 845 82 3840 164)
  (weighted_item 1000 845 82 3840 164).
Proof. apply weighted_exactly_once; lia. Qed.

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

(* Law blocked_strided_exactly_once: blocks of B items are dealt as strided deals items: each item
   is one worker's, a block is one worker's too, also where the last one is short.
   Mirrors: attn_stride. *)
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

(* ---- how many items a worker has at most *)

Definition few (T W : Z) (count : Z -> Z) : Prop :=
  forall b, 0 <= b < W -> 0 <= count b <= T.

Lemma contiguous_few : forall T W b, 0 <= T -> 1 <= W -> 0 <= b < W ->
  0 <= contiguous_count T W b <= T /\ contiguous_count T W b <= (T + W - 1) / W.
Proof.
  intros T W b items workers worker. unfold contiguous_count, contiguous_start.
  replace (T * (b + 1)) with (T * b + T) by ring.
  assert (product : 0 <= T * b) by nia. set (x := T * b) in *. clearbody x.
  assert (T <= T * W) by nia.
  assert (x / W <= (x + T) / W) by (apply Z.div_le_mono; lia).
  assert (below : (x + T) / W <= x / W + (T + W - 1) / W).
  { rewrite <- Z.div_add_l by lia. apply Z.div_le_mono; [lia |].
    pose proof (Z.div_mod x W ltac:(lia)). pose proof (Z.mod_pos_bound x W ltac:(lia)). lia. }
  assert ((T + W - 1) / W <= T).
  { destruct (Z.eq_dec T 0) as [none | some].
    - subst T. rewrite Z.div_small; lia.
    - apply Z.lt_succ_r, Z.div_lt_upper_bound; nia. }
  lia.
Qed.

Lemma weighted_few : forall w0 w1 h T W b, 1 <= w0 -> 1 <= w1 -> 1 <= h -> 0 <= T -> 1 <= W ->
  0 <= b < W -> 0 <= weighted_count w0 w1 h T W b <= T /\ weighted_count w0 w1 h T W b <= T.
Proof.
  intros w0 w1 h T W b positive0 positive1 half items workers worker.
  assert (all : 1 <= weight w0 w1 h W).
  { unfold weight. destruct (Z.le_gt_cases W h);
      [rewrite Z.min_l, Z.max_l by lia | rewrite Z.min_r, Z.max_r by lia]; nia. }
  assert (rises : forall x y, 0 <= x -> x <= y ->
    0 <= weight w0 w1 h x /\ weight w0 w1 h x <= weight w0 w1 h y).
  { intros x y first order. unfold weight.
    assert (0 <= Z.min x h <= Z.min y h) by lia.
    assert (0 <= Z.max 0 (x - h) <= Z.max 0 (y - h)) by lia. nia. }
  pose proof (rises b (b + 1) ltac:(lia) ltac:(lia)).
  pose proof (rises (b + 1) W ltac:(lia) ltac:(lia)).
  unfold weighted_count, weighted_start.
  assert (0 <= T * weight w0 w1 h b / weight w0 w1 h W) by (apply Z.div_pos; nia).
  assert (T * weight w0 w1 h b / weight w0 w1 h W <= T * weight w0 w1 h (b + 1) / weight w0 w1 h W)
    by (apply Z.div_le_mono; nia).
  assert (T * weight w0 w1 h (b + 1) / weight w0 w1 h W <= T)
    by (apply Z.div_le_upper_bound; nia).
  lia.
Qed.

Lemma strided_few : forall T W b, 0 <= T -> 1 <= W -> 0 <= b < W ->
  0 <= strided_count T W b <= T /\ strided_count T W b <= (T + W - 1) / W.
Proof.
  intros T W b items workers worker. unfold strided_count.
  assert (0 <= (T + W - 1 - b) / W) by (apply Z.div_pos; lia).
  assert ((T + W - 1 - b) / W <= (T + W - 1) / W) by (apply Z.div_le_mono; lia).
  assert ((T + W - 1) / W <= T).
  { destruct (Z.eq_dec T 0) as [none | some].
    - subst T. rewrite Z.div_small; lia.
    - apply Z.lt_succ_r, Z.div_lt_upper_bound; nia. }
  lia.
Qed.

Lemma blocked_strided_few : forall B T W b, 1 <= B -> 0 <= T -> 1 <= W -> 0 <= b < W ->
  0 <= blocked_strided_count B T W b <= T /\ blocked_strided_count B T W b <= T.
Proof.
  intros B T W b block items workers worker. unfold blocked_strided_count.
  assert (cycle : 0 < B * W) by nia.
  pose proof (Z.div_mod T (B * W) ltac:(lia)).
  pose proof (Z.mod_pos_bound T (B * W) cycle).
  pose proof (Z.div_pos T (B * W) items cycle).
  set (q := T / (B * W)) in *. set (r := T mod (B * W)) in *. clearbody q r.
  assert (0 <= b * B) by nia.
  assert (0 <= q * B <= B * W * q) by nia. lia.
Qed.

(* ---- coordinates: an item number is a number in mixed radix, the outermost digit first *)

Lemma digits_two : forall x b, 1 <= b -> x / b * b + x mod b = x.
Proof. intros x b base. pose proof (Z.div_mod x b ltac:(lia)). lia. Qed.

Lemma digits_three : forall x b c, 1 <= b -> 1 <= c ->
  (x / (b * c) * b + x / c mod b) * c + x mod c = x.
Proof.
  intros x b c base last. rewrite (Z.mul_comm b c), <- Z.div_div by lia.
  rewrite digits_two by lia. apply digits_two. lia.
Qed.

Lemma top_digit : forall a b x, 0 <= x < a * b -> 1 <= b -> 0 <= x / b < a.
Proof.
  intros a b x range base. split; [apply Z.div_pos; lia |].
  apply Z.div_lt_upper_bound; [lia |]. rewrite Z.mul_comm. lia.
Qed.

(* ---- grouped matrices: parts of different widths side by side

   `counts` lists the column groups of each part; the parts' groups are numbered through. The
   kernel finds the part of a group by comparing with the first group of each part, largest
   first (schedules/linear_main.lua). *)

Fixpoint sum (counts : list Z) : Z :=
  match counts with
  | nil => 0
  | count :: rest => count + sum rest
  end.

(* Part and number inside the part of group x. *)
Fixpoint place (counts : list Z) (x : Z) : nat * Z :=
  match counts with
  | nil => (0%nat, x)
  | count :: rest =>
      if x <? count then (0%nat, x)
      else let inner := place rest (x - count) in (S (fst inner), snd inner)
  end.

Definition positive (counts : list Z) : Prop := Forall (fun count => 0 <= count) counts.

Lemma sum_pos : forall counts, positive counts -> 0 <= sum counts.
Proof. induction 1; simpl; lia. Qed.

(* Law grouped: of matrices of different widths that share one launch, every column group of every
   matrix has one number below the total, and every number below the total is one column group of
   one matrix.
   Mirrors: gemm_m16_group. *)
Theorem grouped : forall counts, positive counts ->
  (forall x, 0 <= x < sum counts -> exists part local, place counts x = (part, local) /\
     (part < length counts)%nat /\ 0 <= local < nth part counts 0 /\
     x = sum (firstn part counts) + local) /\
  (forall part local, (part < length counts)%nat -> 0 <= local < nth part counts 0 ->
     0 <= sum (firstn part counts) + local < sum counts /\
     place counts (sum (firstn part counts) + local) = (part, local)).
Proof.
  intros counts all. induction all as [| count rest first others [there back]]; simpl.
  - split; [intros; lia | intros part local []%Nat.nlt_0_r].
  - pose proof (sum_pos rest others) as rest_pos. split.
    + intros x range. destruct (Z.ltb_spec x count) as [here | beyond].
      * exists 0%nat, x. simpl. repeat split; lia.
      * destruct (there (x - count) ltac:(lia)) as [part [local [found [few_parts [inside same]]]]].
        exists (S part), local. rewrite found. simpl. repeat split; try lia.
    + intros [| part] local below inside; simpl in *.
      * destruct (Z.ltb_spec local count); [split; [lia | reflexivity] | lia].
      * destruct (back part local ltac:(lia) inside) as [range found].
        destruct (Z.ltb_spec (count + sum (firstn part rest) + local) count); [lia |].
        replace (count + sum (firstn part rest) + local - count)
          with (sum (firstn part rest) + local) by ring.
        rewrite found. simpl. split; [lia | reflexivity].
Qed.

(* What a schedule exports of its parts: first group of each part and the groups in all. *)
Definition grouping (counts firsts : list Z) (total : Z) : bool :=
  forallb (fun count => 0 <=? count) counts && (sum counts =? total) &&
  (length firsts =? length counts)%nat &&
  forallb (fun part => nth part firsts 0 =? sum (firstn part counts)) (seq 0 (length counts)).

Lemma grouping_grouped : forall counts firsts total, grouping counts firsts total = true ->
  forall x, 0 <= x < total -> exists part local, place counts x = (part, local) /\
    (part < length counts)%nat /\ 0 <= local < nth part counts 0 /\
    x = nth part firsts 0 + local.
Proof.
  intros counts firsts total decided x range. unfold grouping in decided.
  rewrite !andb_true_iff in decided. destruct decided as [[[signs whole] _] starts].
  assert (all : positive counts).
  { apply Forall_forall. intros count inside. rewrite forallb_forall in signs.
    specialize (signs count inside). lia. }
  destruct (grouped counts all) as [there _].
  destruct (there x ltac:(lia)) as [part [local [found [below [inside same]]]]].
  exists part, local. repeat split; try assumption; try lia.
  rewrite forallb_forall in starts. specialize (starts part).
  rewrite in_seq in starts. specialize (starts ltac:(lia)). lia.
Qed.

(* ---- phases: one launch does several spaces after each other, dealing each to all workers

   A worker does its items of phase 0, then those of phase 1, ...; `start p b` is the item with
   which worker b begins phase p. Its ring of copies runs on over the phases: its n-th item
   overall is item n - (items of earlier phases) of the phase in which it lies. *)

Definition phase_counts (counts : list (Z -> Z)) (b : Z) : list Z :=
  map (fun count => count b) counts.

(* Law phases: when each phase of a launch deals its items exactly once, then the items of all
   phases are done exactly once, each at one place of its worker's run through the phases, so that
   a ring which runs on over the phases has one slot for it.
   Mirrors: tail_m16_sched, mlp_m16_sched. *)
Theorem phases : forall W totals counts items,
  length counts = length totals -> length items = length totals ->
  (forall p, (p < length totals)%nat -> exactly_once (nth p totals 0) W (nth p counts (fun _ => 0))
     (nth p items (fun _ _ => 0))) ->
  (forall p b, (p < length totals)%nat -> 0 <= b < W -> 0 <= nth p counts (fun _ => 0) b) ->
  forall p x, (p < length totals)%nat -> 0 <= x < nth p totals 0 ->
  exists b n, 0 <= b < W /\ 0 <= n < sum (phase_counts counts b) /\
    fst (place (phase_counts counts b) n) = p /\
    nth p items (fun _ _ => 0) b (snd (place (phase_counts counts b) n)) = x /\
    (forall b' n', 0 <= b' < W -> 0 <= n' < sum (phase_counts counts b') ->
       fst (place (phase_counts counts b') n') = p ->
       nth p items (fun _ _ => 0) b' (snd (place (phase_counts counts b') n')) = x ->
       b' = b /\ n' = n).
Proof.
  intros W totals counts items lengths items_lengths once signs p x phase range.
  assert (all : forall b, 0 <= b < W -> positive (phase_counts counts b)).
  { intros b worker. apply Forall_forall. intros count inside.
    apply in_map_iff in inside. destruct inside as [of_phase [<- inside]].
    apply In_nth with (d := fun _ => 0) in inside. destruct inside as [q [below <-]].
    apply signs; lia. }
  assert (of_phase : forall b q, (q < length totals)%nat ->
    nth q (phase_counts counts b) 0 = nth q counts (fun _ => 0) b).
  { intros b q below. exact (map_nth (fun count : Z -> Z => count b) counts (fun _ => 0) q). }
  assert (as_many : forall b, length (phase_counts counts b) = length totals).
  { intro b. unfold phase_counts. rewrite map_length. exact lengths. }
  destruct (once p phase) as [_ [found unique]].
  destruct (found x range) as [b [i [worker [number is]]]].
  destruct (grouped _ (all b worker)) as [_ back].
  destruct (back p i ltac:(rewrite as_many; lia) ltac:(rewrite of_phase by lia; lia))
    as [inside located].
  exists b, (sum (firstn p (phase_counts counts b)) + i). rewrite located. simpl.
  split; [exact worker |]. split; [exact inside |]. split; [reflexivity |]. split; [exact is |].
  intros b' n' worker' inside' phase' is'.
  destruct (grouped _ (all b' worker')) as [there _].
  destruct (there n' inside') as [q [local [located' [below [within same]]]]].
  rewrite located' in phase', is'. simpl in phase', is'. subst q.
  rewrite of_phase in within by exact phase.
  destruct (unique b' local b i worker' within worker number (eq_trans is' (eq_sym is)))
    as [<- <-].
  split; [reflexivity | exact same].
Qed.

Example phases_used := phases 2 [3; 5] [strided_count 3 2; strided_count 5 2]
  [strided_item 3 2; strided_item 5 2] eq_refl eq_refl
  ltac:(intros [| [| p]] below; cbn in *; [apply strided_exactly_once; lia ..| lia])
  ltac:(intros [| [| p]] b below worker; cbn in *;
        [apply strided_few; lia | apply strided_few; lia | lia])
  1%nat 4 ltac:(cbn; lia) ltac:(cbn; lia).
(* Two phases of which the second begins again at item 0 of the first are not exactly once: the
   hypothesis of `phases` is needed. *)
Example phases_twice : ~ exactly_once 2 1 (fun _ => 2) (fun _ i => 0).
Proof.
  intros [_ [_ unique]].
  destruct (unique 0 0 0 1 ltac:(lia) ltac:(lia) ltac:(lia) ltac:(lia) eq_refl). lia.
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

(* A worker has few items: from the lemma of its partition, which stands in the context. *)
Ltac few_items := first [lia | nia].

(* Where there is an item no extent is 0. *)
Ltac some_extents :=
  repeat match goal with
  | bound : 0 <= ?extent <= _ |- _ =>
      lazymatch goal with
      | _ : 1 <= extent |- _ => fail
      | _ =>
          assert (1 <= extent) by (destruct (Z.eq_dec extent 0); [subst extent; lia | lia]);
          try (assert (extent = 1) by lia; subst extent)
      end
  end.

(* Digits of an item number: by the lemmas above where an extent is a run-time one, by arithmetic
   where all are constants. *)
Ltac digit :=
  first
    [ apply Z.mod_pos_bound; lia
    | apply top_digit; [assumption | lia]
    | lia ].
Ltac digits_of_item :=
  lazymatch goal with
  | |- (0 <= _ < _) /\ _ => split; [digit | digits_of_item]
  | |- _ => 
      first [apply digits_three; lia | apply digits_two; lia | lia | rewrite Z.mod_small; lia]
  end.
Ltac digits := some_extents; digits_of_item.
